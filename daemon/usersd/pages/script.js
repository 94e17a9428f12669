"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => within.querySelectorAll(selector);
const on = (target, event, listener) => target.addEventListener(event, listener);

// The language of the page, in the visitor's regional variant if there is one: it decides how dates are written.
const pageLang = document.documentElement.lang;
const lang = navigator.languages.find((language) => language.startsWith(pageLang)) || pageLang;
const signedIn = document.body.dataset.signedIn;
const query = new URLSearchParams(location.search);

// The texts of this script in the language of the page. One in English is there if they cannot be loaded.
let texts = { "say.offline": "The server cannot be reached." };
const textsAddress = document.currentScript.dataset.texts;
const textsLoaded = loadTexts();

async function loadTexts() {
  const answer = await fetch(textsAddress);
  if (!answer.ok) throw new Error(answer.status);
  texts = await answer.json();
}

function make(tag, className, ...content) {
  const element = document.createElement(tag);
  element.className = className;
  element.append(...content);
  return element;
}

function makeLink(className, text, href) {
  const link = make("a", className, text);
  link.href = href;
  return link;
}

// A button in a list: `about` tells it from the others when it is read aloud.
function makeButton(text, about, action) {
  const button = make("button", "quiet", text);
  button.type = "button";
  button.setAttribute("aria-label", `${text}: ${about}`);
  onPress(button, action);
  return button;
}

// --- texts ---

function t(name, values = {}) {
  return fill(texts[name] || "", values);
}

function fill(text, values) {
  return text.replace(/{(\w+)}/g, (_, key) => values[key] ?? "");
}

// The text for a refusal: the catalogue's for the server's message, or one by the status. A message that lists something
// stands in the catalogue with a placeholder for the list.
function refusalText(answer, message = "") {
  const { messages } = texts;
  const template = Object.keys(messages).find((key) => key.includes("{") && message.startsWith(key.split("{")[0]));
  const translation = messages[message] || messages[template];
  if (translation) return translation;
  const seconds = Number(answer.headers.get("Retry-After")) || 60;
  const [n, unit] = seconds < 90 ? [seconds, "second"] : [Math.ceil(seconds / 60), "minute"];
  const time = new Intl.NumberFormat(lang, { style: "unit", unit, unitDisplay: "long" }).format(n);
  if (answer.status === 429) return t("say.limited", { time });
  if (answer.status === 503) return t("say.busy", { time });
  return answer.status < 500 && message ? message.replace(/[^.]$/, "$&.") : t("say.failed");
}

// A note at the top of the page, where it is seen and read aloud: an open dialog is closed.
function say(text, className = "note", ...more) {
  $("dialog[open]")?.close();
  clearNotes();
  const note = make("p", className, text, ...more);
  note.tabIndex = -1;
  $("#notes").append(note);
  return note;
}

function clearNotes() {
  $("#notes").replaceChildren();
  for (const note of all(".refused, .error")) note.hidden = true;
  for (const input of all("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

function localTime(text) {
  return text ? new Date(text).toLocaleString(lang, { dateStyle: "medium", timeStyle: "short" }) : t("users.never");
}

// --- the server ---

// A path of this site, else "/": one slash, and nothing that a browser reads as a second one or drops.
function own_path(target) {
  return /^\/(?![/\\])[!-\[\]-~]*$/.test(target || "") ? target : "/";
}

// Calls the API and returns its JSON; null after a failure, which `refused` has shown by then.
async function ask(method, path, body, refused = (text) => say(text, "note bad")) {
  let answer;
  try {
    await textsLoaded.catch(loadTexts);
    answer = await fetch(path, {
      method,
      headers: body && { "Content-Type": "application/json" },
      body: body && JSON.stringify(body),
      signal: AbortSignal.timeout(30000),
    });
  } catch {
    refused(t("say.offline"));
    return null;
  }
  const result = await answer.json().catch(() => null);
  if (answer.ok && result) return result;
  if (answer.status === 401 && signedIn) {
    const here = encodeURIComponent(location.pathname + location.search);
    say(t("say.ended"), "note bad", " ", makeLink("", t("say.again"), "/login?redirect=" + here));
  } else {
    const message = result?.statusMessage;
    refused(refusalText(answer, message), message);
  }
  return null;
}

// Runs the action of a button unless it runs already. The button is not disabled, as it would lose the focus.
// It stays disabled if the action leaves the page, which it says by returning the target.
async function once(button, action) {
  if (button.getAttribute("aria-disabled")) return;
  button.setAttribute("aria-disabled", "true");
  let target;
  try {
    target = await action();
  } finally {
    if (!target) button.removeAttribute("aria-disabled");
  }
  if (target) location.assign(target);
}

function onPress(button, action) {
  on(button, "click", () => once(button, action));
}

// --- forms ---
// A form says by its attributes what it does. The request: data-api, data-method, data-query (fields that come from the
// page's address). After success: data-then (the page to go to) or data-done (the note to show), data-keep (the form
// stays). data-over: an addition to the error when the link in an email has expired.

function fields(form) {
  const values = {};
  for (const input of all("[name]", form)) values[input.name] = input.type === "checkbox" ? input.checked : input.value;
  for (const name of (form.dataset.query || "").split(" ").filter(Boolean)) values[name] = query.get(name) || "";
  return values;
}

async function send(form) {
  for (const button of all(".show[aria-pressed=true]", form)) button.click();
  clearNotes();
  const values = fields(form);
  const method = form.dataset.method || "POST";
  const isGet = method === "GET";
  const path = form.dataset.api + (isGet ? "?" + new URLSearchParams(values) : "");
  const result = await ask(method, path, isGet ? undefined : values, (text, message = "") => {
    const isDead = form.dataset.query && /link$|^Token/.test(message);
    (isDead ? giveUp : refuse)(form, text, message);
    if (isDead || message === "Account is inactive") offerResend(form, values.email);
  });
  return result && finish(form, result, values);
}

// An expired link stays expired: the link to another page becomes the main button.
function giveUp(form, text) {
  form.hidden = true;
  say(text, "note bad", " ", form.dataset.over || "").focus();
  $("[data-way]")?.classList.add("button", "primary");
}

// Shows a refusal at the field that it is about, or above the form.
function refuse(form, text, message) {
  const input = wrongField(form, message);
  const note = input ? $(`#${input.id}-error`) : $(".refused", form);
  note.textContent = text;
  note.hidden = false;
  if (input) {
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-errormessage", note.id);
    input.focus();
  } else if (message.startsWith("Invalid email or")) {
    $("[type=password]", form).select();
  }
}

function wrongField(form, message) {
  const fieldsOf = [
    [/^Invalid email or|are required$/],
    [/current password/i, "currentPassword"],
    [/confirmation do not match/, "password_confirmation", "newPasswordConfirmation"],
    [/password/i, "newPassword", "password"],
    [/e-?mail/i, "email"],
    [/name/i, "name"],
  ];
  const [, ...names] = fieldsOf.find(([pattern]) => pattern.test(message)) || [];
  return names.map((name) => $(`[name=${name}]:not([type=hidden])`, form)).find(Boolean);
}

// Returns the page to go to, if any.
function finish(form, result, values) {
  if ("then" in form.dataset) return own_path(form.dataset.then);
  const text = fill(form.dataset.done, { ...values, ...result, ...result.user });
  if ("keep" in form.dataset) {
    say(text);
    for (const input of all("[type=password]", form)) empty(input);
    document.dispatchEvent(new CustomEvent("changed", { detail: result }));
  } else {
    form.hidden = true;
    say(text).focus();
    if (form.dataset.api.endsWith("/register")) offerResend(form, values.email);
  }
}

function empty(input) {
  input.value = "";
  input.dispatchEvent(new Event("input"));
}

// Offers another confirmation email.
function offerResend(form, email) {
  const resend = $("[data-resend]");
  if (!resend || resend === form || !email) return;
  resend.elements.email.value = email;
  resend.hidden = false;
}

for (const form of all("form[data-done], form[data-then]")) {
  const button = $("button:not([type])", form);
  const enable = () => { button.disabled = false; };
  // If the texts could not be loaded, a request tries again and reports the failure.
  textsLoaded.then(enable, enable);
  on(form, "submit", (event) => {
    event.preventDefault();
    once(button, () => send(form));
  });
}
// A held Enter key counts once: its repetitions would press the button that has the focus next.
on(window, "keydown", (event) => {
  if (event.repeat && event.key === "Enter") event.preventDefault();
});
for (const input of all("[data-from-query]")) input.value = query.get(input.dataset.fromQuery) || "";

// --- the session ---

for (const button of all("[data-logout]")) {
  onPress(button, async () => await ask("DELETE", "/api/users/session") && button.dataset.logout);
}

// Another tab may have ended the session, or signed in as another user.
on(document, "visibilitychange", async () => {
  if (!signedIn || document.hidden) return;
  const result = await ask("GET", "/api/users/me", undefined, () => {});
  if (result && String(result.user.id) !== signedIn) location.reload();
});

// A page from the browser's back-forward cache may show a user who has signed out.
on(window, "pageshow", (event) => {
  if (event.persisted) location.reload();
});

// --- sign-in through the provider ---

// An error brings the visitor back to /login without ?redirect=, so the target is kept in the session storage.
const provider = $("[data-provider]");
if (provider) {
  const form = $("[data-then]").dataset;
  const target = query.has("error") && sessionStorage.getItem("then");
  if (target && !form.then) {
    form.then = own_path(target);
    query.set("redirect", form.then);
    history.replaceState(null, "", "?" + query);
    provider.search = new URLSearchParams({ redirect: form.then });
    sessionStorage.removeItem("then");
  }
  on(provider, "click", () => sessionStorage.setItem("then", form.then));
}

// --- password fields: the rules, Caps Lock, and the button that shows the password ---

// The rules of usersctl/passwords.py: true for met, false for broken, undefined if only the server knows.
const RULES = {
  length: (password) => [...password].length >= $("[data-min]").dataset.min,
  upper: (password) => /\p{Uppercase}/u.test(password),
  lower: (password) => /\p{Lowercase}/u.test(password),
  number: (password) => /\p{Nd}/u.test(password),
  special: (password) => /[^\p{L}\p{N}\s]/u.test(password),
  common: (password, own) => (own.includes(password.toLowerCase()) ? false : undefined),
  bytes: (password) => new TextEncoder().encode(password).length <= 72,
};

function ownWords(form) {
  const email = $("[type=email]", form).value.trim();
  const name = $("[name=name]")?.value.trim() || "";
  return [email, email.split("@")[0], name].map((word) => word.toLowerCase());
}

for (const input of all("[type=password]")) {
  const field = input.closest(".field");
  const caps = $(".caps", field);
  const show = $(".show", field);
  on(input, "input", () => {
    for (const rule of all("[data-rule]", field)) {
      const met = input.value ? RULES[rule.dataset.rule](input.value, ownWords(input.form)) : undefined;
      rule.className = { true: "met", false: "broken" }[met] || "";
      if (rule.dataset.rule === "bytes") rule.hidden = met !== false;
    }
  });
  on(input, "keyup", (event) => {
    caps.textContent = event.getModifierState?.("CapsLock") ? t("hint.caps") : "";
  });
  on(input, "blur", () => { caps.textContent = ""; });
  on(show, "click", () => {
    const isHidden = input.type === "password";
    input.type = isHidden ? "text" : "password";
    show.setAttribute("aria-pressed", isHidden);
  });
}

// --- the user's own sessions ---

// Shortens a User-Agent to "Firefox · Linux".
function device(agent) {
  const browser = /Edg|OPR|Firefox|Chrome|Safari|curl/.exec(agent);
  const system = /Android|iPhone|iPad|Windows|Mac OS X|Linux/.exec(agent);
  const names = { Edg: "Edge", OPR: "Opera", "Mac OS X": "macOS" };
  return [browser, system].filter(Boolean).map(([name]) => names[name] || name).join(" · ") || agent;
}

const sessionList = $("#session-list");

async function listSessions() {
  const result = await ask("GET", "/api/users/me/sessions");
  if (result) sessionList.replaceChildren(...result.sessions.map(sessionItem));
}

function sessionItem(session) {
  const agent = session.user_agent || "";
  const name = [device(agent) || session.name, session.ip].filter(Boolean).join(" · ");
  const used = session.current ? t("profile.here") : t("profile.last-used", { time: localTime(session.last_used_at || session.created_at) });
  const item = make("li", "", make("span", "", name, " ", make("span", session.current ? "badge" : "hint", used)));
  item.title = agent;
  if (session.current) return item;
  item.append(makeButton(t("profile.end"), name, async () => {
    if (await ask("DELETE", "/api/users/me/sessions/" + session.id)) say(t("profile.ended"));
    await listSessions();
    $("#sessions").focus();
  }));
  return item;
}

if (sessionList) {
  listSessions();
  on(document, "changed", (event) => {
    if (event.detail.email) $("[data-own-email]").value = event.detail.email;
    listSessions();
  });
}

// --- all users, for admins ---

const table = $("#users");

function manageUsers() {
  const [find, previous, next, createDialog, dialog, deleteDialog] =
    ["find", "previous", "next", "create", "one", "delete"].map((id) => $("#" + id));
  const { search, show } = find.elements;
  const form = $("form", dialog);
  let page = Math.max(1, parseInt(query.get("page"), 10) || 1);
  let lastRequest = 0;
  let chosen;

  // The address holds search and page, so that a reload or a sign-in comes back to the same list.
  search.value = query.get("search") || "";
  show.value = [...show.options].map((option) => option.value).findLast((value) => location.search.includes(value));

  async function list() {
    const request = ++lastRequest;
    const wanted = new URLSearchParams(show.value);
    if (search.value.trim()) wanted.set("search", search.value.trim());
    if (page > 1) wanted.set("page", page);
    history.replaceState(null, "", wanted.size ? "?" + wanted : location.pathname);
    const result = await ask("GET", "/api/users?limit=20&" + wanted);
    // A later request may be under way.
    if (!result || request !== lastRequest) return;
    const { total, totalPages, hasNext, hasPrev } = result.pagination;
    if (totalPages && page > totalPages) {
      page = totalPages;
      return list();
    }
    const focused = document.activeElement.dataset.id;
    table.tBodies[0].replaceChildren(...(result.users.length ? result.users.map(row) : [emptyRow()]));
    if (focused) ($(`[data-id="${focused}"]`, table) || table).focus();
    const [n, pages, users] = [page, totalPages, total].map((number) => number.toLocaleString(lang));
    $("#page").textContent = total ? t("users.page", { page: n, pages, total: users }) : "";
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

  function row(user) {
    const role = make("span", "badge " + user.role, t(user.role === "admin" ? "role.admin" : "role.user"));
    const status = make("span", "badge off", t("users.inactive"));
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
    clearNotes();
    form.dataset.api = "/api/users/" + user.id;
    for (const name of ["name", "email", "role"]) form.elements[name].value = user[name];
    $("#one-title").textContent = user.name;
    $("#one-facts").textContent = `${t("users.last-login")}: ${localTime(user.last_login_at)}`;
    $("#one-active").textContent = t(user.active ? "users.deactivate" : "users.activate");
    dialog.showModal();
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
  onPress($("#really"), () => act("DELETE", "", "users.did.delete"));
  on($("#one-delete"), "click", () => {
    dialog.close();
    $("#whom").textContent = `${chosen.name} (${chosen.email})`;
    deleteDialog.showModal();
  });
  on($("#new"), "click", () => {
    const newUser = $("form", createDialog);
    newUser.reset();
    clearNotes();
    empty(newUser.elements.password);
    createDialog.showModal();
  });
  // The browser cannot return the focus to the button that opened the dialog if its row was replaced meanwhile.
  for (const closed of [dialog, deleteDialog]) {
    on(closed, "close", () => {
      const from = document.activeElement;
      if (from === document.body || closed.contains(from)) $(`[data-id="${chosen.id}"]`, table)?.focus();
    });
  }
  for (const button of all("[data-close]")) on(button, "click", () => button.closest("dialog").close());
  on(previous, "click", () => { page -= 1; list(); });
  on(next, "click", () => { page += 1; list(); });

  let timer;
  on(find, "input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => { page = 1; list(); }, 200);
  });
  on(find, "submit", (event) => event.preventDefault());
  on(document, "changed", list);
  list();
}

if (table) manageUsers();
