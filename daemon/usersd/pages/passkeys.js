// --- passkeys ---
// The browser itself reads and writes the JSON of the API; one that cannot has no passkeys here. A button with
// data-passkey sends a passkey to that address, with the boxes of its form, and goes on as the form does. What has
// data-passkeys is shown where there are passkeys. They belong to the name in data-rp.

const { PublicKeyCredential: Passkeys } = window;
const hasPasskeys = Boolean(Passkeys?.parseRequestOptionsFromJSON) && $("[data-rp]")?.dataset.rp === location.hostname;

for (const part of all("[data-passkey], [data-passkeys]")) part.hidden = !hasPasskeys;

// The browser has one error for: cancelled, too slow, and not verified.
function passkeyProblem({ name }) {
  return t(name === "InvalidStateError" ? "passkey.known" : "passkey.cancelled");
}

let waiting; // the request of this page to the browser: there can be one

// Resolves to null after a failure, which `refused` has shown by then.
async function getPasskey(refused, mediation) {
  const options = await ask("POST", "/api/users/session/passkey/options", {}, refused);
  if (!options) return null;
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

async function sendPasskey(form, path, mediation) {
  let onward;
  const refused = (text, message = "") => {
    onward = nextStep(form, message);
    if (!onward) show($(".refused", form), text);
  };
  // A visitor who ignores the suggestions is not told of them.
  const got = await getPasskey(mediation ? () => {} : refused, mediation);
  if (!got) return onward;
  clearNotes();
  const boxes = Object.fromEntries([...all("[type=checkbox]", form)].map(({ name, checked }) => [name, checked]));
  const result = await ask("POST", path, { ...boxes, credential: got.credential }, (text, message) => {
    refused(text, message);
    // So that the browser does not offer it again.
    if (message === "Unknown passkey") Passkeys.signalUnknownCredential?.({ rpId: got.rpId, credentialId: got.credential.id });
  });
  return onward || (result && finish(form, result, {}));
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
  const target = await sendPasskey(form, dataset.passkey, "conditional");
  if (target) location.assign(target);
}

// The challenge ends after some minutes: a page that stays open asks for another one.
if (hasPasskeys) {
  suggestPasskeys();
  setInterval(() => document.hidden || $("[data-passkey][aria-disabled]") || suggestPasskeys(), 240000);
}
