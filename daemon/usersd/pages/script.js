"use strict";

const texts = JSON.parse(document.getElementById("texts").textContent);
// The language of the page, as it is written where the visitor lives.
const lang = navigator.languages.find((each) => each.startsWith(document.documentElement.lang)) || document.documentElement.lang;
const said = document.getElementById("said");
const signedIn = document.body.dataset.signedIn;
const query = new URLSearchParams(location.search);

function make(tag, className, ...content) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...content);
  return made;
}

// --- words ---

function t(name, values = {}) {
  return filled(texts[name] || "", values);
}

function filled(text, values) {
  return text.replace(/{(\w+)}/g, (_, key) => values[key] ?? "");
}

// What the server says, in the words of this page where it has some.
function words(message) {
  const { messages } = texts;
  return messages[message] || messages[message.replace(/^(Password must have) .*/, "$1")] || message.replace(/[^.]$/, "$&.");
}

function inWords(answer, message) {
  if (texts.messages[message]) return texts.messages[message];
  const seconds = Number(answer.headers.get("Retry-After")) || 60;
  const [n, unit] = seconds < 90 ? [seconds, "second"] : [Math.ceil(seconds / 60), "minute"];
  const time = new Intl.NumberFormat(lang, { style: "unit", unit, unitDisplay: "long" }).format(n);
  if (answer.status === 429) return t("say.limited", { time });
  if (answer.status === 503) return t("say.busy", { time });
  return answer.status < 500 && message ? words(message) : t("say.failed");
}

// Where it is seen and heard: not behind a dialog.
function say(text, { bad = false, way } = {}) {
  document.querySelector("dialog[open]")?.close();
  hush();
  const note = make("p", bad ? "note bad" : "note", text);
  note.tabIndex = -1;
  if (way) {
    const link = make("a", "", way.text);
    link.href = way.href;
    note.append(" ", link);
  }
  said.replaceChildren(note);
  return note;
}

// One message at a time.
function hush() {
  said.replaceChildren();
  for (const place of document.querySelectorAll(".refused, .error")) place.hidden = true;
  for (const input of document.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

function when(text) {
  return text ? new Date(text).toLocaleString(lang, { dateStyle: "medium", timeStyle: "short" }) : t("users.never");
}

// --- the server ---

// Only a path of this site: one slash, and nothing that a browser reads as a second one or drops.
function own_path(target) {
  return /^\/(?![/\\])[!-\[\]-~]*$/.test(target || "") ? target : "/";
}

// What it tells; null where that was a refusal or nothing, which has been said by then.
async function ask(method, path, body, refused = (text) => say(text, { bad: true })) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: body ? { "Content-Type": "application/json" } : {},
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(30000),
    });
  } catch {
    refused(t("say.offline"));
    return null;
  }
  const told = await answer.json().catch(() => null);
  if (answer.ok && told) return told;
  if (answer.status === 401 && signedIn) {
    const here = encodeURIComponent(location.pathname + location.search);
    say(t("say.ended"), { bad: true, way: { href: "/login?redirect=" + here, text: t("say.again") } });
  } else {
    refused(inWords(answer, told?.statusMessage), told?.statusMessage);
  }
  return null;
}

// Not twice at a time. A button that is disabled would lose the focus; `action` tells whether the page is left.
async function once(button, action) {
  if (button.getAttribute("aria-disabled")) return;
  button.setAttribute("aria-disabled", "true");
  let leaves = false;
  try {
    leaves = await action();
  } finally {
    if (!leaves) button.removeAttribute("aria-disabled");
  }
}

function leave(target) {
  location.assign(target);
  return true;
}

// --- forms: data-api, data-method, data-query (what comes from the address); and what follows: data-then (where to go),
// data-done (what to say), data-keep (the form stays), data-over (what to say as well when the link is dead) ---

function fields(form) {
  const found = {};
  for (const input of form.querySelectorAll("[name]")) {
    found[input.name] = input.type === "checkbox" ? input.checked : input.value;
  }
  for (const name of (form.dataset.query || "").split(" ").filter(Boolean)) found[name] = query.get(name) || "";
  return found;
}

async function send(form) {
  for (const shown of form.querySelectorAll(".show[aria-pressed=true]")) shown.click();
  hush();
  const found = fields(form);
  const method = form.dataset.method || "POST";
  const isGet = method === "GET";
  const path = form.dataset.api + (isGet ? "?" + new URLSearchParams(found) : "");
  const told = await ask(method, path, isGet ? undefined : found, (text, message = "") => {
    const isDead = form.dataset.query && /link$|^Token/.test(message);
    (isDead ? giveUp : refuse)(form, text, message);
    if (isDead || message === "Account is inactive") offerResend(form, found.email);
  });
  return told ? finish(form, told, found) : false;
}

// A link that is over stays so: the way on takes the place of the form.
function giveUp(form, text) {
  form.hidden = true;
  say([text, form.dataset.over].join(" ").trim(), { bad: true }).focus();
  document.querySelector("[data-way]")?.classList.add("button", "primary");
}

// At the field that it speaks of, or above all of them.
function refuse(form, text, message) {
  const input = wrongField(form, message);
  const place = input ? document.getElementById(input.id + "-error") : form.querySelector(".refused");
  place.textContent = text;
  place.hidden = false;
  if (input) {
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-errormessage", place.id);
    input.focus();
  } else if (message.startsWith("Invalid email or")) {
    form.querySelector("[type=password]").select();
  }
}

function wrongField(form, message) {
  const speaksOf = [
    [/^Invalid email or|are required$/],
    [/current password/i, "currentPassword"],
    [/confirmation do not match/, "password_confirmation", "newPasswordConfirmation"],
    [/password/i, "newPassword", "password"],
    [/e-?mail/i, "email"],
    [/name/i, "name"],
  ];
  const [, ...names] = speaksOf.find(([words]) => words.test(message)) || [];
  return names.map((name) => form.querySelector(`[name=${name}]:not([type=hidden])`)).find(Boolean);
}

// Whether it leaves the page.
function finish(form, told, found) {
  if ("then" in form.dataset) {
    return leave(own_path(form.dataset.then));
  }
  const text = filled(form.dataset.done, { ...found, ...told, ...told.user });
  if ("keep" in form.dataset) {
    say(text);
    for (const input of form.querySelectorAll("[type=password]")) empty(input);
    document.dispatchEvent(new CustomEvent("changed", { detail: told }));
  } else {
    form.hidden = true;
    say(text).focus();
    if (form.dataset.api.endsWith("/register")) offerResend(form, found.email);
  }
  return false;
}

function empty(input) {
  input.value = "";
  input.dispatchEvent(new Event("input"));
}

// The way on for an account that waits for its confirmation: another letter.
function offerResend(form, email) {
  const resend = document.querySelector("[data-resend]");
  if (!resend || resend === form || !email) return;
  resend.elements.email.value = email;
  resend.hidden = false;
}

for (const form of document.querySelectorAll("form[data-done], form[data-then]")) {
  const button = form.querySelector("button:not([type])");
  button.disabled = false; // without this script it stays so
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    once(button, () => send(form));
  });
}
// A key that is held presses once, and not also what comes up under it.
addEventListener("keydown", (event) => {
  if (event.repeat && event.key === "Enter") event.preventDefault();
});
for (const input of document.querySelectorAll("[data-from-query]")) input.value = query.get(input.dataset.fromQuery) || "";

// --- the session, which another tab may have ended or changed ---

for (const logout of document.querySelectorAll("[data-logout]")) {
  logout.addEventListener("click", () => once(logout, async () => Boolean(await ask("DELETE", "/api/users/session")) && leave(logout.dataset.logout)));
}

document.addEventListener("visibilitychange", async () => {
  if (!signedIn || document.hidden) return;
  const told = await ask("GET", "/api/users/me", undefined, () => {});
  if (told && String(told.user.id) !== signedIn) location.reload();
});

// A page that the browser kept may be somebody's who has left.
addEventListener("pageshow", (event) => {
  if (event.persisted) location.reload();
});

// --- through the provider: who comes back with an error has lost the address that told where to go ---

const provider = document.querySelector("[data-provider]");
if (provider) {
  const form = document.querySelector("[data-then]");
  const kept = query.has("error") && sessionStorage.getItem("then");
  if (kept && !form.dataset.then) {
    query.set("redirect", own_path(kept));
    history.replaceState(null, "", "?" + query);
    form.dataset.then = query.get("redirect");
    provider.search = "?" + new URLSearchParams({ redirect: form.dataset.then });
    sessionStorage.removeItem("then");
  }
  provider.addEventListener("click", () => sessionStorage.setItem("then", form.dataset.then));
}

// --- passwords: which rules are met, Caps Lock, and a look at what was typed ---

// As in usersctl/passwords.py: true is met, false is broken, undefined cannot be told here.
const RULES = {
  length: (password) => [...password].length >= texts["rules.min"],
  upper: (password) => /\p{Uppercase}/u.test(password),
  lower: (password) => /\p{Lowercase}/u.test(password),
  number: (password) => /\p{Nd}/u.test(password),
  special: (password) => /[^\p{L}\p{N}\s]/u.test(password),
  common: (password, own) => (own.includes(password.toLowerCase()) ? false : undefined),
  bytes: (password) => new TextEncoder().encode(password).length <= 72,
};

function ownWords(form) {
  const email = form.querySelector("[type=email]").value.trim();
  const name = document.querySelector("[name=name]")?.value.trim() || "";
  return [email, email.split("@")[0], name].filter(Boolean).map((word) => word.toLowerCase());
}

for (const input of document.querySelectorAll("[type=password]")) {
  const field = input.closest(".field");
  const caps = field.querySelector(".caps");
  const show = field.querySelector(".show");
  input.addEventListener("input", () => {
    for (const rule of field.querySelectorAll("[data-rule]")) {
      const met = input.value ? RULES[rule.dataset.rule](input.value, ownWords(input.form)) : undefined;
      rule.classList.toggle("met", met === true);
      rule.classList.toggle("broken", met === false);
      if (rule.dataset.rule === "bytes") rule.hidden = met !== false;
    }
  });
  input.addEventListener("keyup", (event) => {
    caps.textContent = event.getModifierState?.("CapsLock") ? t("hint.caps") : "";
  });
  input.addEventListener("blur", () => { caps.textContent = ""; });
  show.addEventListener("click", () => {
    const shown = input.type === "password";
    input.type = shown ? "text" : "password";
    show.setAttribute("aria-pressed", shown);
  });
}

// --- one's own sessions ---

// "Firefox · Linux" is all that a person needs of a browser's long name.
function device(agent) {
  const browser = /(Edg|OPR|Firefox|Chrome|Safari|curl)/.exec(agent || "");
  const system = /(Android|iPhone|iPad|Windows|Mac OS X|Linux)/.exec(agent || "");
  const names = { Edg: "Edge", OPR: "Opera", "Mac OS X": "macOS" };
  return [browser, system].filter(Boolean).map((found) => names[found[1]] || found[1]).join(" · ") || agent;
}

const sessionList = document.getElementById("session-list");

async function listSessions() {
  const told = await ask("GET", "/api/users/me/sessions");
  if (told) sessionList.replaceChildren(...told.sessions.map(sessionItem));
}

function sessionItem(session) {
  const name = [device(session.user_agent) || session.name, session.ip].filter(Boolean).join(" · ");
  const used = session.current ? t("profile.here") : t("profile.last-used", { time: when(session.last_used_at || session.created_at) });
  const item = make("li", "", make("span", "", name, " ", make("span", session.current ? "badge" : "hint", used)));
  item.title = session.user_agent || "";
  if (session.current) return item;
  const end = make("button", "quiet", t("profile.end"));
  end.type = "button";
  end.setAttribute("aria-label", t("profile.end") + ": " + name);
  end.addEventListener("click", () => once(end, async () => {
    if (await ask("DELETE", "/api/users/me/sessions/" + session.id)) say(t("profile.ended"));
    await listSessions();
    document.getElementById("sessions").focus();
  }));
  item.append(end);
  return item;
}

if (sessionList) {
  listSessions();
  document.addEventListener("changed", (event) => {
    if (event.detail.email) document.querySelector("[data-own-email]").value = event.detail.email;
    listSessions();
  });
}

// --- all users, for admins ---

const table = document.getElementById("users");

function manageUsers() {
  const [find, previous, next, create, one, doomed] =
    ["find", "previous", "next", "create", "one", "delete"].map((id) => document.getElementById(id));
  const { search, show } = find.elements;
  const form = one.querySelector("form");
  let page = Math.max(1, parseInt(query.get("page"), 10) || 1);
  let asked = 0;
  let chosen = null;

  // The address tells what is shown, so that a reload or a sign-in comes back to it.
  search.value = query.get("search") || "";
  for (const option of show.options) option.selected = Boolean(option.value) && location.search.includes(option.value);
  if (show.selectedIndex < 0) show.selectedIndex = 0;

  async function list() {
    const mine = ++asked;
    const wanted = new URLSearchParams(show.value);
    if (search.value.trim()) wanted.set("search", search.value.trim());
    if (page > 1) wanted.set("page", page);
    history.replaceState(null, "", wanted.size ? "?" + wanted : location.pathname);
    const told = await ask("GET", "/api/users?limit=20&" + wanted);
    if (!told || mine !== asked) return; // a later question is under way
    const { total, totalPages, hasNext, hasPrev } = told.pagination;
    if (totalPages && page > totalPages) {
      page = totalPages;
      await list();
      return;
    }
    const held = table.contains(document.activeElement) && document.activeElement.dataset.id;
    table.tBodies[0].replaceChildren(...(told.users.length ? told.users.map(row) : [nobody()]));
    if (held) (table.querySelector(`[data-id="${held}"]`) || table).focus();
    const [n, pages, users] = [page, totalPages, total].map((number) => number.toLocaleString(lang));
    document.getElementById("page").textContent = total ? t("users.page", { page: n, pages, total: users }) : "";
    const from = document.activeElement;
    previous.disabled = !hasPrev;
    next.disabled = !hasNext;
    if (from === next && !hasNext) previous.focus();
    if (from === previous && !hasPrev) next.focus();
  }

  function nobody() {
    const cell = make("td", "", t("users.none"));
    cell.colSpan = 5;
    return make("tr", "", cell);
  }

  function row(user) {
    const role = t("role." + user.role);
    const status = t(user.active ? "users.active" : "users.inactive");
    const tags = make("span", "tags", make("span", "badge " + user.role, role));
    if (!user.active) tags.append(" ", make("span", "badge off", status));
    const who = make("th", "who", make("span", "name", user.name), make("span", "hint", user.email), tags);
    who.scope = "row";
    const cells = [
      make("span", "badge " + user.role, role),
      make("span", user.active ? "badge on" : "badge off", status),
      make("span", "hint", when(user.last_login_at)),
      String(user.id) === signedIn ? mine() : manage(user),
    ];
    return make("tr", "", who, ...cells.map((cell) => make("td", "", cell)));
  }

  function mine() {
    const link = make("a", "button", t("nav.profile"));
    link.href = "/account";
    return link;
  }

  function manage(user) {
    const button = make("button", "quiet", t("users.manage"));
    button.type = "button";
    button.dataset.id = user.id;
    button.setAttribute("aria-label", t("users.manage") + ": " + user.email);
    button.addEventListener("click", () => open(user));
    return button;
  }

  function open(user) {
    chosen = user;
    hush();
    form.dataset.api = "/api/users/" + user.id;
    for (const name of ["name", "email", "role"]) form.elements[name].value = user[name];
    document.getElementById("one-title").textContent = user.name;
    document.getElementById("one-facts").textContent = `${t("users.last-login")}: ${when(user.last_login_at)}`;
    document.getElementById("one-active").textContent = t(user.active ? "users.deactivate" : "users.activate");
    one.showModal();
  }

  function act(id, method, path, told, body) {
    const button = document.getElementById(id);
    button.addEventListener("click", () => once(button, async () => {
      const [user, sent] = [chosen, body?.()];
      if (await ask(method, "/api/users/" + user.id + path, sent)) say(t(told(sent), user));
      await list();
    }));
  }

  act("one-active", "PATCH", "", ({ active }) => (active ? "users.did.activate" : "users.did.deactivate"), () => ({ active: !chosen.active }));
  act("one-sessions", "DELETE", "/sessions", () => "users.did.end");
  act("really", "DELETE", "", () => "users.did.delete");
  document.getElementById("one-delete").addEventListener("click", () => {
    one.close();
    document.getElementById("whom").textContent = `${chosen.name} (${chosen.email})`;
    doomed.showModal();
  });
  document.getElementById("new").addEventListener("click", () => {
    const created = create.querySelector("form");
    created.reset();
    hush();
    empty(created.elements.password);
    create.showModal();
  });
  // The button that it was opened from may have been drawn anew meanwhile.
  for (const each of [one, doomed]) {
    each.addEventListener("close", () => {
      const from = document.activeElement;
      if (from === document.body || each.contains(from)) table.querySelector(`[data-id="${chosen.id}"]`)?.focus();
    });
  }
  for (const each of document.querySelectorAll("[data-close]")) {
    each.addEventListener("click", () => each.closest("dialog").close());
  }
  previous.addEventListener("click", () => { page -= 1; list(); });
  next.addEventListener("click", () => { page += 1; list(); });

  let waiting;
  find.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { page = 1; list(); }, 200);
  });
  find.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("changed", list);
  list();
}

if (table) manageUsers();
