// --- all users, for admins ---

const table = $("#users");

function manageUsers() {
  const [find, previous, next, createDialog, dialog] = ["find", "previous", "next", "create", "one"].map((id) => $("#" + id));
  const { search, show } = find.elements;
  const form = $("form", dialog);
  let page;
  let ends;  // by page, the id of the last user before it: with it the server need not skip a million users
  let lastRequest = 0;
  let chosen;

  // The address holds search and page: a reload, a sign-in and the browser's Back come to the same list.
  function readAddress() {
    const asked = new URLSearchParams(location.search);
    search.value = asked.get("search") || "";
    show.value = [...show.options].map((option) => option.value).findLast((value) => location.search.includes(value));
    page = Math.max(1, parseInt(asked.get("page"), 10) || 1);
    ends = [];
  }

  // `change`: of the browser's history. A list that the user asked for is a new entry.
  async function list(change = "replaceState") {
    const request = ++lastRequest;
    const wanted = new URLSearchParams(show.value);
    if (search.value.trim()) wanted.set("search", search.value.trim());
    if (page > 1) wanted.set("page", page);
    history[change](null, "", wanted.size ? "?" + wanted : location.pathname);
    if (ends[page]) wanted.set("after", ends[page]);
    const result = await ask("GET", "/api/users?limit=20&" + wanted);
    // A later request may be under way.
    if (!result || request !== lastRequest) return;
    ends[page + 1] = result.users.at(-1)?.id;
    const { total, totalIsExact, totalPages, hasNext, hasPrev } = result.pagination;
    if (totalPages && page > totalPages) {
      page = totalPages;
      return list();
    }
    const awaiting = (result.headers.get("X-Awaiting-Confirmation") || "").split(",");
    const focused = document.activeElement.dataset.id;
    table.tBodies[0].replaceChildren(...(result.users.length ? result.users.map((user) => row(user, awaiting)) : [emptyRow()]));
    if (focused) ($(`[data-id="${focused}"]`, table) || table).focus();
    const [n, pages, users] = [page, totalPages, total].map((number) => number.toLocaleString(lang));
    $("#page").textContent = total ? t(totalIsExact ? "users.page" : "users.page.more", { page: n, pages, total: users }) : "";
    const from = document.activeElement;
    previous.disabled = !hasPrev;
    next.disabled = !hasNext;
    if (from === next && !hasNext) previous.focus();
    if (from === previous && !hasPrev) next.focus();
  }

  function emptyRow() {
    const cell = make("td", "", t("users.none"));
    cell.colSpan = 5;
    return make("tr", "", cell);
  }

  function row(user, awaiting) {
    const role = make("span", "badge " + user.role, t(user.role === "admin" ? "role.admin" : "role.user"));
    const status = awaiting.includes(String(user.id)) ? make("span", "badge", t("users.awaiting")) : make("span", "badge off", t("users.inactive"));
    const tags = make("span", "tags", role.cloneNode(true));
    if (!user.active) tags.append(" ", status.cloneNode(true));
    const who = make("th", "who", make("span", "name", user.name), make("span", "hint", user.email), tags);
    who.scope = "row";
    const cells = [
      role,
      user.active ? make("span", "badge on", t("users.active")) : status,
      make("span", "hint", localTime(user.last_login_at)),
      String(user.id) === signedIn ? makeLink("button", t("nav.profile"), "/account") : manageButton(user),
    ];
    return make("tr", "", who, ...cells.map((cell) => make("td", "", cell)));
  }

  function manageButton(user) {
    const button = makeButton(t("users.manage"), user.email, () => open(user));
    button.dataset.id = user.id;
    return button;
  }

  function open(user) {
    chosen = user;
    form.dataset.api = "/api/users/" + user.id;
    for (const name of ["name", "email", "role"]) form.elements[name].value = user[name];
    $("#one-title").textContent = user.name;
    $("#one-facts").textContent = `${t("users.last-login")}: ${localTime(user.last_login_at)}`;
    $("#one-active").textContent = t(user.active ? "users.deactivate" : "users.activate");
    openDialog(dialog, rowButton);
  }

  // A new list replaces the button that opened the dialog.
  function rowButton() {
    return $(`[data-id="${chosen.id}"]`, table);
  }

  async function act(method, path, done, values) {
    const user = chosen;
    if (await ask(method, "/api/users/" + user.id + path, values)) say(t(done, user));
    await list();
  }

  onPress($("#one-active"), () => {
    const active = !chosen.active;
    return act("PATCH", "", active ? "users.did.activate" : "users.did.deactivate", { active });
  });
  onPress($("#one-sessions"), () => act("DELETE", "/sessions", "users.did.end"));
  on($("#one-delete"), "click", async () => {
    dialog.close();
    const whom = `${t("users.delete.intro")} ${chosen.name} (${chosen.email})`;
    if (await sure(t("users.delete.title"), whom, t("users.delete.submit"), rowButton)) act("DELETE", "", "users.did.delete");
  });
  on($("#new"), "click", () => {
    const newUser = $("form", createDialog);
    newUser.reset();
    empty(newUser.elements.password);
    openDialog(createDialog);
  });
  on(previous, "click", () => { page -= 1; list("pushState"); });
  on(next, "click", () => { page += 1; list("pushState"); });

  let timer;
  on(find, "input", (event) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      page = 1;
      ends = [];
      // What is typed at the end of a word that was searched for already is the same step.
      const goesOn = event.target === search && new URLSearchParams(location.search).has("search");
      list(goesOn ? "replaceState" : "pushState");
    }, 200);
  });
  on(find, "submit", (event) => event.preventDefault());
  on(document, "changed", () => list());
  on(window, "popstate", () => {
    clearTimeout(timer);
    $("dialog[open]")?.close();
    readAddress();
    list();
  });
  readAddress();
  list();
}

manageUsers();
