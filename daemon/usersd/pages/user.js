// --- one user, for admins ---

const edit = $("form[data-method=PATCH]");

async function setGroups(button) {
  const within = button.closest("section");
  const chosen = [...all("[name=group]:checked", within)].map((box) => box.value);
  const others = $("[name=others]", within)?.value.split(/[\s,]+/).filter(Boolean) || [];
  if (!await ask("PUT", button.dataset.groups, { groups: [...new Set([...chosen, ...others])] })) return;
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
