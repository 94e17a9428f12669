// --- all users, for admins: searched, filtered, sorted, and many of them changed at once ---

const table = $("#users");
const MOST = 1000;  // chosen users, as the server takes them at once
// What is asked before a change of many users, and what is said after it.
const CHANGES = {
  activate: ["users.ask.activate", "users.done.activate"],
  deactivate: ["users.ask.deactivate", "users.done.deactivate"],
  "end-sessions": ["users.ask.end-sessions", "users.done.end-sessions"],
  invite: ["users.ask.invite", "users.done.invite"],
  "add-group": ["users.ask.add-group", "users.done.add-group"],
  "remove-group": ["users.ask.remove-group", "users.done.remove-group"],
  delete: ["users.ask.delete", "users.done.delete"],
};
const HARMLESS = ["activate", "invite", "add-group", "remove-group"];
const COLUMNS = ["id", "email", "name", "role", "active", "created_at", "last_login_at"];

function manageUsers() {
  const [find, previous, next, createDialog, inviteDialog, chooseAll, chooseNone] =
    ["find", "previous", "next", "create", "invite", "choose-all", "choose-none"].map((id) => $("#" + id));
  const choosePage = $(".choose-page", table);
  const { search, state, role, group, sort } = find.elements;
  const filters = { search, state, role, group };
  const chosen = new Map();  // users by id, also of other pages
  let users = [];  // on this page
  let total;
  let page;  // that was asked for
  let shown;  // the one that came: the other may still be under way, or have failed
  let ends;  // by page, the id of the last user before it: with it the server need not skip a million users
  let lastRequest = 0;
  let failure;  // the note of the last list that did not come

  // The page lists the groups once: there may be many.
  for (const select of all("#into, #invite-groups")) select.append(...[...group.options].slice(1).map((option) => option.cloneNode(true)));

  // The address holds filters, order and page: a reload, a sign-in and the browser's Back come to the same list.
  function readAddress() {
    const asked = new URLSearchParams(location.search);
    for (const [name, input] of Object.entries(filters)) input.value = asked.get(name) || "";
    // A group that is not among the options, or that is gone.
    if (asked.get("group") && group.value !== asked.get("group")) group.add(new Option(asked.get("group"), asked.get("group"), true, true));
    for (const input of [state, role, group]) if (input.selectedIndex < 0) input.selectedIndex = 0;
    sort.value = `${asked.get("sort") || "name"} ${asked.get("order") || "asc"}`;
    if (sort.selectedIndex < 0) sort.selectedIndex = 0;
    page = Math.max(1, parseInt(asked.get("page"), 10) || 1);
    ends = [];
  }

  function wanted() {
    const values = new URLSearchParams();
    for (const [name, input] of Object.entries(filters)) if (input.value.trim()) values.set(name, input.value.trim());
    const [key, order] = sort.value.split(" ");
    if (key !== "name") values.set("sort", key);
    if (order !== "asc") values.set("order", order);
    return values;
  }

  // `change`: of the browser's history. A list that the user asked for is a new entry.
  async function list(change = "replaceState") {
    const request = ++lastRequest;
    const values = wanted();
    if (page > 1) values.set("page", page);
    history[change](null, "", values.size ? "?" + values : location.pathname);
    if (ends[page]) values.set("after", ends[page]);
    const result = await ask("GET", "/api/users?limit=50&" + values, undefined, (text) => { failure = say(text, "note bad"); });
    // A later request may be under way.
    if (!result || request !== lastRequest) return;
    failure?.remove();
    ({ users } = result);
    ends[page + 1] = users.at(-1)?.id;
    const { totalPages } = result.pagination;
    // Behind a known user there may be more pages than are counted, because users before it were deleted.
    if (totalPages && page > totalPages && !users.length) {
      page = totalPages;
      return list();
    }
    show(result);
  }

  function show({ headers, pagination }) {
    const [awaiting, invited] = ["X-Awaiting-Confirmation", "X-Invited"].map((name) => (headers.get(name) || "").split(","));
    const focused = document.activeElement.dataset.id;
    table.tBodies[0].replaceChildren(...users.map((user) => row(user, awaiting, invited)));
    if (focused) ($(`[data-id="${focused}"]`, table) || table).focus();
    const [key, order] = sort.value.split(" ");
    for (const head of all("[data-sort]", table)) {
      if (head.dataset.sort === key) head.setAttribute("aria-sort", order === "asc" ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    total = pagination;
    shown = page;
    const known = Math.max(page, pagination.totalPages);
    const [n, pages, number] = [page, known, pagination.total].map((count) => count.toLocaleString(lang));
    $("#page").textContent = pagination.total ? t(pagination.totalIsExact ? "users.page" : "users.page.more", { page: n, pages, total: number }) : t("users.none");
    const from = document.activeElement;
    previous.disabled = !pagination.hasPrev;
    next.disabled = !pagination.hasNext;
    if (from === next && next.disabled) previous.focus();
    if (from === previous && previous.disabled) next.focus();
    showChoice();
  }

  function row(user, awaiting, invited) {
    const roleName = t(user.role === "admin" ? "role.admin" : "role.user");
    const status = make("span", "badge " + (user.active ? "on" : "off"), t(statusOf(user, awaiting, invited)));
    if (!user.active && status.textContent !== t("users.deactivated")) status.className = "badge";
    const tags = make("span", "tags", make("span", "badge " + user.role, roleName));
    if (!user.active) tags.append(" ", status.cloneNode(true));
    const link = makeLink("name", user.name, "/users/" + user.id);
    link.dataset.id = "link-" + user.id;
    const below = make("span", "hint narrow-only", user.email);
    const head = make("th", "who", link, below, tags);
    head.scope = "row";
    const email = make("td", "email wide-only", user.email);
    // What is cut off keeps its beginning.
    link.dir = below.dir = email.dir = "auto";
    head.title = user.name;
    email.title = user.email;
    const cells = [
      make("span", "badge " + user.role, roleName),
      status,
      make("span", "hint", new Date(user.created_at).toLocaleDateString(lang, { dateStyle: "medium" })),
      make("span", "hint", localTime(user.last_login_at)),
    ];
    const more = cells.map((cell) => make("td", "wide-only", cell));
    return make("tr", "", make("td", "pick", ...checkbox(user)), head, email, ...more);
  }

  function statusOf(user, awaiting, invited) {
    if (user.active) return "users.active";
    const among = (ids) => ids.includes(String(user.id));
    return among(invited) ? "users.invited" : among(awaiting) ? "users.awaiting" : "users.deactivated";
  }

  // The own account is no part of a change of many.
  function checkbox(user) {
    if (String(user.id) === signedIn) return [];
    const box = make("input", "");
    box.type = "checkbox";
    box.checked = chosen.has(user.id);
    box.dataset.id = user.id;
    box.setAttribute("aria-label", t("label.of", { act: t("users.choose"), thing: user.email }));
    on(box, "change", () => {
      choose([user], box.checked);
      box.checked = chosen.has(user.id);
    });
    return [box];
  }

  // --- the choice ---

  const others = (list) => list.filter((user) => String(user.id) !== signedIn);

  function choose(list, isChosen) {
    for (const user of others(list)) {
      if (!isChosen) chosen.delete(user.id);
      else if (chosen.size < MOST || chosen.has(user.id)) chosen.set(user.id, user);
      else {
        say(t("users.choose.most", { n: MOST.toLocaleString(lang) }), "note bad");
        break;
      }
    }
    showChoice();
  }

  function showChoice() {
    const here = others(users).filter((user) => chosen.has(user.id)).length;
    const isWhole = here > 0 && here === others(users).length;
    for (const box of all("tbody .pick input", table)) box.checked = chosen.has(Number(box.dataset.id));
    choosePage.checked = isWhole;
    choosePage.indeterminate = here > 0 && !isWhole;
    choosePage.disabled = !others(users).length;
    $("#acts").hidden = chooseNone.hidden = !chosen.size;
    $("#count").textContent = chosen.size ? t("users.chosen", { n: chosen.size.toLocaleString(lang) }) : "";
    chooseAll.hidden = !(isWhole && total.totalPages > 1 && chosen.size < Math.min(MOST, total.total - 1));
    const isFew = total.totalIsExact && total.total <= MOST;
    const n = (isFew ? total.total : MOST).toLocaleString(lang);
    chooseAll.textContent = isFew ? t("users.choose.all", { n }) : t("users.choose.first", { n });
  }

  // The users of this list from its first page on, as many as can be chosen.
  async function chooseAllFound() {
    const values = wanted();
    const found = [];
    for (let more = true; more && found.length < MOST;) {
      const result = await ask("GET", "/api/users?limit=100&" + values);
      if (!result) return;
      found.push(...others(result.users));
      more = result.users.length === 100;
      if (more) values.set("after", result.users.at(-1).id);
    }
    choose(found.slice(0, MOST), true);
    chooseNone.focus();
  }

  on(choosePage, "change", () => choose(users, choosePage.checked));
  onPress(chooseAll, chooseAllFound);
  on(chooseNone, "click", () => {
    chosen.clear();
    showChoice();
    choosePage.focus();
  });

  // --- changes of all that are chosen ---

  async function change(button) {
    const action = button.dataset.act;
    const [question, done] = CHANGES[action];
    const values = { n: chosen.size.toLocaleString(lang), group: $("#into")?.value };
    const emails = [...chosen.values()].slice(0, 3).map((user) => user.email).join(", ") + (chosen.size > 3 ? ", …" : "");
    const about = `${t("users.chosen", values)} (${emails}). ${t(question, values)}`;
    const back = () => chosen.size ? button : choosePage;
    const look = HARMLESS.includes(action) ? "" : "danger";
    // The dots of a button promise a question. The button of the question acts.
    const act = button.textContent.replace(/\s*…$/, "");
    if (!await sure(act, about, act, back, look)) return;
    const body = { ids: [...chosen.keys()], action };
    if (action.endsWith("-group")) body.group = values.group;
    let isGone = false;
    // Without a message the server did not answer, and may have made the change.
    const result = await ask("POST", "/api/users/bulk", body, (text, message) => {
      isGone = message === "User not found";
      say(message ? `${text} ${t("users.unchanged")}` : text, "note bad");
    });
    if (result) say(t(done, { ...values, n: result.changed.toLocaleString(lang) }));
    // After any other refusal the choice stays, for another try.
    if (result || isGone) {
      chosen.clear();
      await list();
      choosePage.focus();
    }
  }

  for (const button of all("[data-act]")) onPress(button, () => change(button));

  // A spreadsheet runs text that begins with one of these signs, so an apostrophe stands before it.
  function cell(value) {
    const text = String(value ?? "").replace(/^(?=\s*[=+\-@＝＋－＠\t\r\n])/u, "'");
    return /[",;\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  on($("#export"), "click", () => {
    const rows = [...chosen.values()].map((user) => COLUMNS.map((name) => cell(user[name])).join(","));
    // With the mark by which spreadsheets know UTF-8.
    const file = new Blob(["\ufeff", [COLUMNS.join(","), ...rows, ""].join("\r\n")], { type: "text/csv" });
    const link = makeLink("", "", URL.createObjectURL(file));
    link.download = `${location.hostname}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  });

  // --- the list ---

  // A form begins anew, unless the end of the session closed it.
  function openForm(dialog) {
    const form = $("form", dialog);
    if (!dialog.returnValue.includes("ended")) {
      form.reset();
      for (const input of all("[type=password]", form)) empty(input);
    }
    dialog.returnValue = "";
    openDialog(dialog);
  }

  on($("#new"), "click", () => openForm(createDialog));
  on($("#new-invite"), "click", () => openForm(inviteDialog));
  on(previous, "click", () => turn(shown - 1));
  on(next, "click", () => turn(shown + 1));

  function turn(to) {
    const change = page === to ? "replaceState" : "pushState";
    page = to;
    list(change);
  }

  function begin(change) {
    page = 1;
    ends = [];
    list(change);
  }

  for (const head of all("[data-sort]", table)) {
    on($("button", head), "click", () => {
      const [key, order] = sort.value.split(" ");
      const isNew = head.dataset.sort !== key;
      // The newest are asked for first.
      const first = ["created", "last-login"].includes(head.dataset.sort) ? "desc" : "asc";
      sort.value = `${head.dataset.sort} ${isNew ? first : order === "asc" ? "desc" : "asc"}`;
      begin("pushState");
    });
  }

  let timer;
  on(find, "input", ({ target }) => {
    clearTimeout(timer);
    // What is typed at the end of a word that was searched for already is the same step.
    const goesOn = target === search && new URLSearchParams(location.search).has("search");
    timer = setTimeout(() => begin(goesOn ? "replaceState" : "pushState"), target === search ? 200 : 0);
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
