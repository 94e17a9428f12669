// --- the new address that waits for its proof ---

const claimCard = $("#claim"), emailField = $("#email");
let called = emailField?.value;

async function showClaim() {
  if (!claimCard) return; // the account needs a second factor first
  const result = await ask("GET", "/api/users/me/email");
  if (!result) return;
  const { email, claim } = result;
  claimCard.hidden = !claim;
  // Only after a change of the address: otherwise this would replace what the user is typing.
  if (called !== (claim || result).email) emailField.value = called = (claim || result).email;
  if (!claim) return;
  const text = $("#claim-text");
  text.textContent = fill(text.dataset.text, { email, claim: claim.email, time: localTime(claim.expires_at) });
}

// --- a fresh proof of identity, which some changes need ---

const proof = $("#proof");

// Without a password the visitor leaves for a sign-in at the provider, and the form that was sent is sent again afterwards,
// unless that signed in to another account.
isConfirmed = (method, path) => {
  sessionStorage.setItem("unconfirmed", JSON.stringify([method, path, Date.now(), signedIn]));
  proof.returnValue = "";
  proof.showModal();
  return new Promise((resolve) => on(proof, "close", () => resolve(proof.returnValue === "done"), { once: true }));
};

const unconfirmed = taken("unconfirmed");
if (unconfirmed && query.has("confirmed")) {
  const [method, path, since, user] = JSON.parse(unconfirmed);
  const form = [...all("form[data-api]")].find(({ dataset }) => dataset.api === path && (dataset.method || "POST") === method);
  if (form && user === signedIn && Date.now() - since < 600000) textsLoaded.then(() => form.requestSubmit());
}

showClaim();
on(document, "changed", () => {
  showClaim();
  refresh();
});
