// --- passkeys ---
// The browser itself reads and writes the JSON of the API; one that cannot has no passkeys here. A button with
// data-passkey sends a passkey to that address, with the boxes of its form, and goes on as the form does. What has
// data-passkeys is shown where there are passkeys, data-no-passkeys elsewhere. They belong to the name in data-rp.

const { PublicKeyCredential: Passkeys } = window;
const hasPasskeys = Boolean(Passkeys?.parseRequestOptionsFromJSON) && $("[data-rp]")?.dataset.rp === location.hostname;

for (const part of all("[data-passkey], [data-passkeys]")) part.hidden = !hasPasskeys;
for (const part of all("[data-no-passkeys]")) part.hidden = hasPasskeys;

// The browser has one error for: cancelled, too slow, and not verified.
function passkeyProblem({ name }) {
  return t(name === "InvalidStateError" ? "passkey.known" : "passkey.cancelled");
}

let waiting; // the request of this page to the browser: there can be one
let suggestedAt; // when this page asked for the options of its suggestions

// Resolves to null without a passkey; `refused` has shown by then what failed.
async function getPasskey(refused, mediation) {
  // One after the other, in all tabs: the first answer names the browser by its cookie.
  const options = await navigator.locks.request("passkey options", () => ask("POST", "/api/users/session/passkey/options", {}, refused));
  // Suggestions do not end what a button began.
  if (!options || (mediation && $("[data-passkey][aria-disabled]"))) return null;
  waiting?.abort();
  const { signal } = waiting = new AbortController();
  const publicKey = Passkeys.parseRequestOptionsFromJSON(options.publicKey);
  try {
    const credential = await navigator.credentials.get({ publicKey, mediation, signal });
    return { credential: credential.toJSON(), rpId: options.publicKey.rpId };
  } catch (error) {
    if (!signal.aborted) refused(passkeyProblem(error));
    return null;
  }
}

// Returns the page to go to, if any.
async function sendPasskey(form, path, mediation) {
  const warn = (text) => show($(".refused", form), text);
  // A visitor who ignores the suggestions is not told of them.
  const got = await getPasskey(mediation ? () => {} : warn, mediation);
  if (!got) return;
  clearNotes();
  const boxes = Object.fromEntries([...all("[type=checkbox]", form)].map(({ name, checked }) => [name, checked]));
  let refusal;
  const result = await ask("POST", path, { ...boxes, credential: got.credential }, (...said) => refusal = said);
  if (result) return finish(form, result, {});
  if (!refusal) return;
  const [text, message] = refusal;
  const onward = nextStep(form, message);
  if (onward) return onward;
  // The server has one message for all second factors.
  warn(message === "Invalid code" && await translated("Invalid passkey") || text);
  // So that the browser does not offer it again.
  if (message === "Unknown passkey") Passkeys.signalUnknownCredential?.({ rpId: got.rpId, credentialId: got.credential.id });
  if (mediation) suggestPasskeys();
}

for (const button of all("[data-passkey]")) {
  onPress(button, async () => {
    clearNotes();
    const target = await sendPasskey(button.form, button.dataset.passkey);
    if (!target) suggestPasskeys();
    return target;
  });
}

// In the suggestions of the address field, as long as the page asks for nothing else.
async function suggestPasskeys() {
  if (!$("[autocomplete~=webauthn]") || !await Passkeys?.isConditionalMediationAvailable?.()) return;
  const { form, dataset } = $("[data-passkey]");
  suggestedAt = Date.now();
  const target = await sendPasskey(form, dataset.passkey, "conditional");
  if (target) location.assign(target);
}

// The challenge ends after some minutes: a page that stays open, or is shown again, asks for another one.
const RENEWED_AFTER = 240000;

function renewSuggestions() {
  if (!document.hidden && Date.now() - suggestedAt >= RENEWED_AFTER) suggestPasskeys();
}

if (hasPasskeys) {
  suggestPasskeys();
  setInterval(renewSuggestions, RENEWED_AFTER / 8);
  on(document, "visibilitychange", renewSuggestions);
}
