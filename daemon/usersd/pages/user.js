// --- one user, for admins ---

const edit = $("form[data-method=PATCH]");

// Sends only what was changed: the page may be older than the groups.
async function setGroups(button) {
  const within = button.closest("section"), boxes = [...all("[name=group]", within)], others = $("[name=others]", within);
  const named = (ticked, words = "") => [...boxes.filter(ticked).map((box) => box.value), ...words.split(/[\s,]+/).filter(Boolean)];
  const before = named((box) => box.defaultChecked, others?.defaultValue);
  const wanted = named((box) => box.checked, others?.value);
  const present = await ask("GET", button.dataset.groups);
  if (!present) return;
  const kept = present.groups.filter((name) => wanted.includes(name) || !before.includes(name));
  const added = wanted.filter((name) => !before.includes(name));
  if (!await ask("PUT", button.dataset.groups, { groups: [...new Set([...kept, ...added])] })) return;
  settle(within);
  await refresh();
  say(button.dataset.done);
}

on($("main"), "click", ({ target }) => {
  const button = target.closest("[data-groups]");
  if (button) once(button, () => setGroups(button));
});

on(document, "changed", ({ detail }) => {
  for (const name of ["name", "email", "role"]) edit.elements[name].value = detail.user[name];
  refresh();
});
