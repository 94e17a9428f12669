"use strict";

// For all pages: small tools to find and make elements ($, all, on, make, makeLink), texts (t), notes (say),
// calls of the API (ask), buttons (onPress) and forms, which say by their attributes what they do. The note is a live
// region: what `say` shows is read aloud. dialogs.js has dialogs and questions; assets.py says which page loads it.

const $ = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => within.querySelectorAll(selector);
const on = (target, event, listener, options) => target.addEventListener(event, listener, options);

// The language of the page, in the visitor's regional variant if there is one: it decides how dates are written. Some Chromium
// says "en-US@posix", which none of its own functions takes.
const pageLang = document.documentElement.lang;
const lang = navigator.languages.find((language) => new RegExp(`^${pageLang}(-[\\w-]+)?$`).test(language)) || pageLang;
const signedIn = document.body.dataset.signedIn;
const store = storage();
const query = new URLSearchParams(takeLink());

// What the tab keeps for its next page; nothing where the browser lets no site keep anything.
function storage() {
  try {
    return sessionStorage;
  } catch {
    return { getItem() {}, setItem() {}, removeItem() {} };
  }
}

// The token of an emailed link leaves the address bar and the history. The tab keeps it for a reload until it was used.
function takeLink() {
  const { origin, pathname, search } = location;
  if (new URLSearchParams(search).has("token")) {
    store.setItem(pathname, search);
    history.replaceState(null, "", origin + pathname);
    return search;
  }
  const link = store.getItem(pathname);
  // The form is only in the answer to a request with the token.
  if (link && !$("form[data-query]")) location.replace(origin + pathname + link);
  return link || search;
}

function dropLink() {
  store.removeItem(location.pathname);
}

// Text that the next page takes over: a note, or the email address that was typed.
function hand(name, text) {
  if (text) store.setItem(name, text);
}

function taken(name) {
  const text = store.getItem(name);
  store.removeItem(name);
  return text;
}

// The texts of this script in the language of the page. One in English is there if they cannot be loaded.
let texts = { "say.offline": "The server cannot be reached." };
const addresses = document.currentScript.dataset;
const textsLoaded = loadTexts();

async function loadTexts() {
  texts = await load(addresses.texts);
}

async function load(address) {
  const answer = await fetch(address, { signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(answer.status);
  return answer.json();
}

// Translations of the server's messages, which are loaded when the first one comes. A message that lists something stands
// there with a placeholder for the list.
let messages;

async function translated(message) {
  messages ||= await load(addresses.messages).catch(() => null);
  const template = Object.keys(messages || {}).find((key) => key.includes("{") && message.startsWith(key.split("{")[0]));
  return messages?.[message] || messages?.[template]?.replace("{text}", () => message.slice(template.indexOf("{")));
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

// --- texts ---

function t(name, values = {}) {
  return fill(texts[name] || "", values);
}

function fill(text, values) {
  return text.replace(/{(\w+)}/g, (_, key) => values[key] ?? "");
}

// Why an account is inactive, which the server says after the right password only.
const STATES = {
  "awaiting-confirmation": "say.awaiting-confirmation",
  deactivated: "say.deactivated",
  deletion: "say.deletion",
};

// The text for a refusal: the catalogue's for the server's message, or one by the status.
async function refusalText(answer, message = "") {
  const translation = await translated(message);
  const seconds = Number(answer.headers.get("Retry-After")) || 60;
  const [n, unit] = seconds < 90 ? [seconds, "second"] : [Math.ceil(seconds / 60), "minute"];
  const time = new Intl.NumberFormat(lang, { style: "unit", unit, unitDisplay: "long" }).format(n);
  const state = answer.headers.get("X-Account-State");
  if (STATES[state]) return t(STATES[state]);
  if (translation) return translation;
  if (message.startsWith("Too many failed logins")) return t("say.locked", { time });
  if (answer.status === 429) return t("say.limited", { time });
  if (answer.status === 503) return t("say.busy", { time });
  return answer.status < 500 && message ? message.replace(/[^.]$/, "$&.") : t("say.failed");
}

// A note at the top of the page, where it is seen and read aloud: open dialogs are closed (that of a proof stands above
// another one), and keep the kind of the note as their returnValue.
function say(text, className = "note", ...more) {
  for (const dialog of all("dialog[open]")) dialog.close(className);
  clearNotes();
  const note = make("p", className, text, ...more);
  note.tabIndex = -1;
  $("#notes").append(note);
  note.scrollIntoView({ block: "nearest" });
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

// Times that the server wrote in UTC.
function showTimes(within = document) {
  for (const time of all("time", within)) time.textContent = localTime(time.dateTime);
}

showTimes();

// --- the server ---

// A path of this site, else "/": one slash, and nothing that a browser reads as a second one or drops.
function own_path(target) {
  return /^\/(?![/\\])[!-\[\]-~]*$/.test(target || "") ? target : "/";
}

// Set by a page that has a dialog for it: asks for a fresh proof of identity, and resolves to true after one.
let isConfirmed;
// The same: show recovery codes and an API token, until the visitor has kept them.
let showCodes, showToken;

// Calls the API and returns its JSON; null after a failure, which `refused` has shown by then. Recovery codes that come
// with the answer have been shown, too.
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
  if (answer.ok && result) {
    if (result.recoveryCodes) await showCodes(result.recoveryCodes);
    result.headers = answer.headers;
    return result;
  }
  if (answer.status === 401 && signedIn && result?.statusMessage === "Authentication required") {
    const here = encodeURIComponent(location.pathname + location.search);
    const again = makeLink("", t("say.again"), "/login?redirect=" + here);
    const note = say(t("say.ended"), "note bad ended", " ", again);
    if ([...all("input")].some(isChanged)) {
      again.target = "_blank";
      note.append(" ", t("say.kept"));
    }
  } else {
    const message = result?.statusMessage;
    if (message === "Confirm that it is you" && await isConfirmed?.(method, path)) return ask(method, path, body, refused);
    refused(await refusalText(answer, message), message, answer.headers.get("X-Account-State"));
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
// page's address). After success: data-then (the page to go to) and data-done (the note to show, there or here),
// data-keep (the form stays), data-leads (to the url of the answer), data-closes (its dialog), data-title (the page's new heading). data-over: an addition to the error when the link in an email has expired.
// data-list at a field: its words, or the boxes of one name that are ticked, are sent as a list.
// data-second: the page for the second step of a sign-in; data-ends: where that page leads when the sign-in has ended;
// data-proof: the page that proves anew who the visitor is, and comes back.

// Whether a field is not as the page came with it, or as it was saved last. A list says by `selected` how it came.
function isChanged(field) {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  return field.value !== (field.defaultValue ?? $("[selected]", field).value);
}

// What the fields hold was saved.
function settle(within) {
  for (const field of all("input", within)) [field.defaultValue, field.defaultChecked] = [field.value, field.checked];
  for (const option of all("option", within)) option.defaultSelected = option.selected;
}

// A change (PATCH) has only what was changed: the page may be older than the account.
function fields(form) {
  const values = {};
  for (const input of all("[name]", form)) {
    if (form.dataset.method === "PATCH" && !isChanged(input)) continue;
    if (input.type === "hidden") input.value ||= address?.value || "";
    if (input.dataset.list !== undefined) {
      const items = input.value.split(/[\s,]+/).filter((item) => item && (input.type !== "checkbox" || input.checked));
      if (items.length) values[input.name] = [...(values[input.name] || []), ...items];
      continue;
    }
    let value = input.type === "checkbox" ? input.checked : input.value;
    if (input.multiple) value = [...input.selectedOptions].map((option) => option.value);
    // What may be empty is left out then.
    if (value.length !== 0 || input.required) values[input.name] = value;
  }
  for (const name of (form.dataset.query || "").split(" ").filter(Boolean)) values[name] = query.get(name) || "";
  return withCode(values);
}

// One field takes the digits of an app and a recovery code.
function withCode({ code, ...others }) {
  if (code === undefined) return others;
  const digits = code.replace(/[\s-]/g, "");
  return { ...others, ...(/^\d{1,8}$/.test(digits) ? { code: digits } : { recoveryCode: code }) };
}

async function send(form) {
  for (const input of all(".box input", form)) reveal(input, false);
  clearNotes();
  if (hasProblems(form)) return;
  const values = fields(form);
  const method = form.dataset.method || "POST";
  const isGet = method === "GET";
  const path = form.dataset.api + (isGet ? "?" + new URLSearchParams(values) : "");
  let onward;
  const result = await ask(method, path, isGet ? undefined : values, (text, message = "", state = "") => {
    onward = nextStep(form, message);
    if (onward) return;
    const isDead = form.dataset.query && /link$|^Token|invitation/.test(message);
    (isDead ? giveUp : refuse)(form, text, message);
    if (isDead || state === "awaiting-confirmation") offerResend(form, values.email);
  });
  return onward || (result && finish(form, result, values));
}

// The page where a refused sign-in or change goes on, if any.
function nextStep(form, message) {
  const { second, ends, proof, then } = form.dataset;
  if (proof && message === "Confirm that it is you") return proof;
  if (second && message === "Second factor required") return second + (then ? "?" + new URLSearchParams({ redirect: then }) : "");
  if (!ends || message !== "Authentication required") return undefined;
  hand("note", t("second.over"));
  return ends;
}

// An expired link stays expired: the link to another page becomes the main button, and the first one for the Tab key.
function giveUp(form, text) {
  dropLink();
  form.hidden = true;
  say(text, "note bad", " ", form.dataset.over || "").focus();
  const way = $("[data-way]");
  way?.classList.add("button", "primary");
  way?.parentElement.prepend(way);
}

// Shows a refusal at the field that it is about, or above the form.
function refuse(form, text, message) {
  const input = wrongField(form, message);
  if (input) {
    mark(input, text);
    input.focus();
    return;
  }
  show($(".refused", form), text);
  if (message.startsWith("Invalid email or")) $("[type=password]", form).select();
}

function show(note, text) {
  note.textContent = text;
  note.hidden = false;
}

// --- what is wrong with a field before the form is sent, all at once, in the language of the page ---

function hasProblems(form) {
  const wrong = [...all("input[aria-describedby]", form)].filter((input) => {
    const text = problem(input);
    if (text) mark(input, text);
    return text;
  });
  wrong[0]?.focus();
  return wrong.length > 0;
}

function problem(input) {
  const { valueMissing, typeMismatch } = input.validity;
  const repeated = input.dataset.repeats && input.form.elements[input.dataset.repeats];
  if (valueMissing) return t("say.missing");
  // Safari, and Chromium where a password manager fills in the field, take no domain with other letters than ASCII. The server does.
  if (typeMismatch && !/@.*[^\0-\x7f]/.test(input.value)) return t("say.email");
  if (repeated && repeated.value !== input.value) return t("say.repeat");
  // The list of common passwords in the browser may be wrong, rarely: the server decides.
  if ($(".broken:not([data-rule=common])", input.closest(".field"))) return t("say.rules");
}

function mark(input, text) {
  const note = $(`#${input.id}-error`);
  // A field that gets the focus is read aloud with its error. One that has it already is not.
  note.role = input === document.activeElement ? "alert" : null;
  show(note, text);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-errormessage", note.id);
}

function unmark(input) {
  const note = $(`#${input.id}-error`);
  if (note) note.hidden = true;
  input.removeAttribute("aria-invalid");
}

// What was said of a text does not hold for the next one.
on(document, "input", ({ target }) => {
  unmark(target);
  for (const repetition of all(`[data-repeats="${target.name}"]`)) unmark(repetition);
});

function wrongField(form, message) {
  const fieldsOf = [
    [/^Invalid email or|are required$/],
    [/current password/i, "currentPassword"],
    [/address or range|Too many ranges/, "ip"],
    [/confirmation do not match/, "password_confirmation", "newPasswordConfirmation"],
    [/password/i, "newPassword", "password"],
    [/e-?mail/i, "email"],
    [/name/i, "name"],
    [/code/i, "code"],
  ];
  const [, ...names] = fieldsOf.find(([pattern]) => pattern.test(message)) || [];
  return names.map((name) => $(`[name=${name}]:not([type=hidden])`, form)).find(Boolean);
}

// Returns the page to go to, if any.
async function finish(form, result, values) {
  const { then, done = "", keep, title } = form.dataset;
  const message = done.includes("{message}") && (await translated(result.message)) || result.message;
  const text = fill(done, { ...values, ...result, message, ...result.user });
  if (result.token) await showToken(result.token);
  if (form.dataset.query) dropLink();
  if (form.dataset.leads !== undefined) return result.url;
  if (form.dataset.closes !== undefined) {
    form.reset();
    form.closest("dialog").close("done");
    return;
  }
  if (then !== undefined) {
    hand("note", text);
    if (form.dataset.query) hand("email", values.email);
    return own_path(then);
  }
  if (keep !== undefined) {
    say(text);
    for (const input of all("[type=password]", form)) empty(input);
    document.dispatchEvent(new CustomEvent("changed", { detail: result }));
    if (form.dataset.method === "PATCH") settle(form);
  } else {
    (form.closest("section") || form).hidden = true;
    if (title) retitle(title);
    say(text).focus();
    if (form.dataset.api.endsWith("/register")) offerResend(form, values.email);
  }
}

// The rest of the page was for a visitor before this step.
function retitle(title) {
  const heading = $("h1");
  document.title = document.title.replace(heading.textContent, () => title);
  heading.textContent = title;
  for (const question of all("[data-before]")) question.hidden = true;
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
  // A form for a passkey alone has no such button.
  const enable = () => button?.removeAttribute("disabled");
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

// What a form says after it has led to this page.
const note = taken("note");
if (note) {
  const shown = say(note);
  shown.focus();
  // In WebKit the field with autofocus takes it when the page is drawn first.
  requestAnimationFrame(() => shown.focus());
}

// The email address goes along between the pages of a visitor who is not signed in.
const address = $(".narrow #email");
const typed = taken("email");
if (address && typed) address.value ||= typed;
for (const way of all(".ways a, .primary")) {
  on(way, "click", () => hand("email", address?.value || query.get("email")));
}

// Without cookies a sign-in would only come back to the form.
if ($("[data-second]") && !navigator.cookieEnabled) textsLoaded.then(() => say(t("say.cookies"), "note bad"));

// --- the session ---

for (const button of all("[data-logout]")) {
  // On pages that need no script it is a link.
  on(button, "click", (event) => event.preventDefault());
  onPress(button, async () => await ask("DELETE", "/api/users/session") && button.dataset.logout);
}

// Another tab may have ended the session, or signed in again, perhaps as another user.
// What is shown only once, in a dialog that does not close by itself, stays.
on(document, "visibilitychange", async () => {
  if (!signedIn || document.hidden || $("dialog[open][closedby=none]")) return;
  const result = await ask("GET", "/api/users/me", undefined, () => {});
  if (result && String(result.user.id) !== signedIn) location.reload();
  if (result) $("#notes .ended")?.remove();
});

// A page from the browser's back-forward cache may show a user who has signed out.
on(window, "pageshow", (event) => {
  if (event.persisted) location.reload();
});

// --- sign-in through the provider ---

// An error brings the visitor back to /login without ?redirect=, so the target is kept in the session storage.
const ways = all("[data-provider]");
const login = $("[data-then]")?.dataset;
if (ways.length && login) {
  const target = query.has("error") && store.getItem("then");
  if (target && !login.then) {
    login.then = own_path(target);
    query.set("redirect", login.then);
    history.replaceState(null, "", "?" + query);
    store.removeItem("then");
    for (const way of ways) {
      const search = new URLSearchParams(way.search);
      search.set("redirect", login.then);
      way.search = search;
    }
  }
  for (const way of ways) on(way, "click", () => store.setItem("then", login.then));
}

// --- password fields: the rules, Caps Lock, and the button that shows the password ---

// The rules of usersctl/passwords.py: true for met, false for broken, undefined if only the server knows.
const RULES = {
  length: (password) => [...password].length >= $("[data-min]").dataset.min,
  upper: (password) => /\p{Uppercase}/u.test(password),
  lower: (password) => /\p{Lowercase}/u.test(password),
  number: (password) => /\p{Nd}/u.test(password),
  special: (password) => /[^\p{L}\p{N}\s]/u.test(password),
  common: (password, own) => isUncommon(password.toLowerCase(), own),
  strength: () => undefined,
  bytes: (password) => new TextEncoder().encode(password).length <= 72,
};

// The list comes as a Bloom filter, once a password is being typed.
let commonBits;

async function loadCommon(path) {
  const answer = await fetch(path).catch(() => null);
  if (answer?.ok) commonBits = new Uint8Array(await answer.arrayBuffer());
}

// daemon/usersd/pages/common_passwords.py writes what this reads. Undefined until it is there.
function isUncommon(password, own) {
  if (own.includes(password)) return false;
  if (!RULES.length(password)) return undefined;
  if (isPattern(password)) return false;
  if (!commonBits) return undefined;
  const bytes = new TextEncoder().encode(password);
  const [first, second] = [2166136261, 709607].map((start) => bytes.reduce((hash, byte) => Math.imul(hash ^ byte, 16777619) >>> 0, start));
  for (let step = 0; step < 10; step += 1) {
    const place = (first + step * second) % (commonBits.length * 8 - 1);
    if (!(commonBits[place >> 3] & (1 << (place & 7)))) return true;
  }
  return false;
}

// As _is_pattern in usersctl/passwords.py.
function isPattern(password) {
  const signs = [...password];
  const repeats = signs.length <= 12 && /^(.{1,4})\1+$/su.test(password);
  const backwards = signs.reverse().join("");
  return repeats || ["0123456789".repeat(8), "abcdefghijklmnopqrstuvwxyz".repeat(3)].some((row) => row.includes(password) || row.includes(backwards));
}

function ownWords(form) {
  const email = $("[type=email]", form).value.trim();
  const name = $("[name=name]")?.value.trim() || "";
  return [email, email.split("@")[0], name].map((word) => word.toLowerCase());
}

function reveal(input, isShown) {
  const field = input.closest(".field");
  const button = $(".show", field);
  const text = t(isShown ? "password.hide" : "password.show");
  input.type = isShown ? "text" : "password";
  // No texts could be loaded.
  if (!text) return;
  button.textContent = text;
  button.setAttribute("aria-label", t("label.of", { act: text, thing: $("label", field).textContent }));
}

for (const input of all("[type=password]")) {
  const field = input.closest(".field");
  const caps = $(".caps", field);
  const judge = () => {
    for (const rule of all("[data-rule]", field)) {
      const met = input.value ? RULES[rule.dataset.rule](input.value, ownWords(input.form)) : undefined;
      rule.className = { true: "met", false: "broken" }[met] || "";
      if (rule.dataset.rule === "bytes") rule.hidden = met !== false;
    }
  };
  on(input, "input", judge);
  const list = $("[data-common]", field);
  if (list) on(input, "input", () => loadCommon(list.dataset.common).then(judge), { once: true });
  on(input, "keyup", (event) => {
    caps.textContent = event.getModifierState?.("CapsLock") ? t("hint.caps") : "";
  });
  on(input, "blur", () => { caps.textContent = ""; });
  on($(".show", field), "click", () => reveal(input, input.type === "password"));
}
