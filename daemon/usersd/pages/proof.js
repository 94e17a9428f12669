// --- a fresh proof of identity, which some changes need: the dialog of proof.html ---

const proof = $("#proof");

// Without a password the visitor leaves for a sign-in at the provider, and the form or button (data-path) that was used is
// used again afterwards with what was typed, unless that signed in to another account.
if (proof) isConfirmed = (method, path) => {
  const typed = fieldsOf(begunBy(method, path)).map(({ value, checked }) => [value, checked]);
  sessionStorage.setItem("unconfirmed", JSON.stringify([method, path, Date.now(), signedIn, typed]));
  proof.returnValue = "";
  proof.showModal();
  return new Promise((resolve) => on(proof, "close", () => resolve(proof.returnValue === "done"), { once: true }));
};

function begunBy(method, path) {
  return [...all("form[data-api], button[data-path]")].find(({ dataset }) => (dataset.api || dataset.path) === path && (dataset.method || "POST") === method);
}

function fieldsOf(begun) {
  return begun ? [...all("input:not([type=password]), select", begun)] : [];
}

const unconfirmed = taken("unconfirmed");
if (unconfirmed && query.has("confirmed")) {
  const [method, path, since, user, typed] = JSON.parse(unconfirmed);
  const begun = begunBy(method, path);
  if (begun && user === signedIn && Date.now() - since < 600000) textsLoaded.then(() => {
    begun.closest("details")?.setAttribute("open", "");
    fieldsOf(begun).forEach((field, place) => [field.value, field.checked] = typed[place]);
    begun.requestSubmit ? begun.requestSubmit() : begun.click();
  });
}
