// --- one user, for admins: the server writes the whole page, and after a change its parts come anew ---

const edit = $("form[data-method=PATCH]");

async function refresh() {
  const answer = await fetch(location.pathname + location.search);
  // The session has ended, or the user is gone.
  if (answer.redirected || !answer.ok) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  showTimes(fresh);
  retitle($("h1", fresh).textContent);
  for (const part of all("[data-part]")) {
    const { act, path } = document.activeElement.dataset;
    const held = part.contains(document.activeElement);
    part.replaceWith($("#" + part.id, fresh));
    const same = act && $(`[data-act=${act}][data-path="${path}"]`);
    if (held) (same || $(`#${part.id} h2`) || $("#facts h2")).focus();
  }
}

async function act(button) {
  const { method, path, body, then, ask: question, done, grave } = button.dataset;
  const text = button.textContent;
  if (!await sure(text, question, text, undefined, grave === undefined ? "" : "danger")) return;
  const result = await ask(method, path, body ? JSON.parse(body) : undefined);
  if (!result) return;
  if (then) {
    hand("note", done);
    return then;
  }
  await refresh();
  say(done);
}

async function setGroups(button) {
  const within = button.closest("section");
  const chosen = [...all("[name=group]:checked", within)].map((box) => box.value);
  const others = $("[name=others]", within)?.value.split(/[\s,]+/).filter(Boolean) || [];
  if (!await ask("PUT", button.dataset.groups, { groups: [...new Set([...chosen, ...others])] })) return;
  await refresh();
  say(button.dataset.done);
}

on($("main"), "click", (event) => {
  const button = event.target.closest("[data-act], [data-groups]");
  if (button) once(button, () => button.dataset.act ? act(button) : setGroups(button));
  const more = event.target.closest("[data-more]");
  if (!more || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.replaceState(null, "", more.search);
  refresh();
});

on(document, "changed", ({ detail }) => {
  for (const name of ["name", "email", "role"]) edit.elements[name].value = detail.user[name];
  refresh();
});
