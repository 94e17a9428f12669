// --- a fresh proof of identity, which some changes need: the dialog of proof.html ---

const proof = $("#proof");

// Without a password the visitor leaves for a sign-in at the provider, and the form or button (data-path) that was used is
// used again afterwards, unless that signed in to another account.
if (proof) isConfirmed = (method, path) => {
  store.setItem("unconfirmed", JSON.stringify([method, path, Date.now(), signedIn]));
  proof.returnValue = "";
  proof.showModal();
  return new Promise((resolve) => on(proof, "close", () => resolve(proof.returnValue === "done"), { once: true }));
};

const unconfirmed = taken("unconfirmed");
if (unconfirmed && query.has("confirmed")) {
  const [method, path, since, user] = JSON.parse(unconfirmed);
  const begun = [...all("form[data-api], button[data-path]")].find(({ dataset }) => (dataset.api || dataset.path) === path && (dataset.method || "POST") === method);
  if (begun && user === signedIn && Date.now() - since < 600000) textsLoaded.then(() => {
    begun.closest("details")?.setAttribute("open", "");
    begun.requestSubmit ? begun.requestSubmit() : begun.click();
  });
}
