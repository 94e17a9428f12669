// --- passkeys, authenticator app and recovery codes of the own account ---

const addPasskey = $("#add-passkey"), addTotp = $("#add-totp");

if (addPasskey) onPress(addPasskey, createPasskey);

async function createPasskey() {
  const options = await ask("POST", addPasskey.dataset.path, {});
  if (!options) return;
  let credential;
  try {
    const publicKey = Passkeys.parseCreationOptionsFromJSON(options.publicKey);
    credential = (await navigator.credentials.create({ publicKey })).toJSON();
  } catch (error) {
    say(passkeyProblem(error), "note bad");
    return;
  }
  const { name, then } = addPasskey.dataset;
  const result = await ask("POST", "/api/users/me/passkeys", { credential, name });
  if (!result) return;
  hand("note", t("factors.passkey.saved"));
  return then;
}

if (addTotp) onPress(addTotp, async () => {
  const result = await ask("POST", addTotp.dataset.path, {});
  if (!result) return;
  const picture = $("svg", new DOMParser().parseFromString(result.qr, "text/html"));
  $("#totp-qr").replaceChildren(document.adoptNode(picture));
  $("#totp-key").textContent = result.secret.replace(/.{4}(?=.)/g, "$& ");
  $("#totp-open").href = result.uri;
  openDialog($("#totp"), () => addTotp);
  $("#totp-code").focus();
});

// A button that copies the text. Browsers have a clipboard at https and on this machine only. If one refuses it, what is
// `shown` of the text is selected, to be copied by hand.
function offerCopy(button, text, shown) {
  button.hidden = !navigator.clipboard;
  button.textContent = t("codes.copy");
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = t("codes.copied");
    } catch {
      getSelection().selectAllChildren(shown);
    }
  };
}

// Resolves when the visitor says that they are kept. Escape does not close what cannot be shown again.
showCodes = (codes) => {
  const dialog = $("#codes");
  $("#codes-list").replaceChildren(...codes.map((code) => make("li", "", make("code", "", code))));
  $("#codes-download").href = URL.createObjectURL(new Blob([codes.join("\n") + "\n"], { type: "text/plain" }));
  offerCopy($("#codes-copy"), codes.join("\n"), $("#codes-list"));
  $("#totp").close();
  openDialog(dialog);
  $("#codes-title").focus();
  return new Promise((resolve) => on(dialog, "close", resolve, { once: true }));
};

on($("#codes"), "cancel", (event) => event.preventDefault());
on($("#codes-print"), "click", () => print());

for (const button of all("[data-rename]")) on(button, "click", () => {
  const dialog = $("#rename"), form = $("form", dialog);
  form.dataset.api = button.dataset.rename;
  form.elements.name.value = button.dataset.name;
  openDialog(dialog, () => button);
  form.elements.name.select();
});

// So that the browser forgets passkeys that were removed.
const accepted = $("[data-accepted]")?.dataset.accepted;
if (hasPasskeys && accepted) Passkeys.signalAllAcceptedCredentials?.(JSON.parse(accepted)).catch(() => {});
