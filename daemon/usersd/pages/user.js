// --- one user, for admins ---

const edit = $("form[data-method=PATCH]");

// Only what was changed: the page may be older than the groups.
async function setGroups(button) {
  const path = button.dataset.groups, within = button.closest("section"), present = await ask("GET", path);
  if (!present) return;
  const groups = new Set(present.groups), words = (text) => text.match(/[^\s,]+/g) || [];
  for (const field of [...all("input", within)].filter(isChanged)) {
    words(field.defaultValue).forEach((name) => groups.delete(name));
    if (field.type !== "checkbox" || field.checked) words(field.value).forEach((name) => groups.add(name));
  }
  if (!await ask("PUT", path, { groups: [...groups] })) return;
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
