// --- parts of a page that the server writes: fetched anew after a change, and their buttons (act.html) ---

async function refresh() {
  const answer = await fetch(location.pathname + location.search).catch(() => null);
  if (!answer) return say(t("say.offline"), "note bad");
  // The session has ended, or what the page shows is gone.
  if (answer.redirected || !answer.ok) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  showTimes(fresh);
  retitle($("h1", fresh).textContent);
  // What is ticked and not saved yet stays.
  for (const part of all("[data-part]")) if (![...all("input", part)].some(isChanged)) replacePart(part, $("#" + part.id, fresh));
}

// The focus stays on the same button, or goes to the heading above it.
function replacePart(part, fresh) {
  const focused = document.activeElement;
  const held = part.contains(focused);
  const { act, path } = focused.dataset;
  part.replaceWith(fresh);
  if (!held) return;
  const same = act && $(`[data-act="${act}"][data-path="${path}"]`);
  (same || $("h2", fresh.closest("section") || fresh) || $("h2[tabindex]")).focus();
}

async function act(button) {
  // Many buttons of one kind have their texts at their list.
  const { method, path, body, then, ask: question, done, grave } = { ...button.closest("ul")?.dataset, ...button.dataset };
  const text = button.textContent;
  // The question is about the session that its button is called by.
  const title = button.getAttribute("aria-labelledby")?.split(" ").map((id) => $("#" + id).textContent.trim()).join(" ");
  if (question && !await sure(title || text, question, text, undefined, grave === undefined ? "" : "danger")) return;
  if (!await ask(method, path, body ? JSON.parse(body) : undefined)) return;
  if (then) {
    hand("note", done);
    return then;
  }
  await refresh();
  say(done);
}

on($("main"), "click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) once(button, () => act(button));
  const more = event.target.closest("[data-more]");
  if (!more || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.replaceState(null, "", more.search);
  refresh();
});
