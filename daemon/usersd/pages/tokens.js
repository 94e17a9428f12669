// --- API tokens of the own account ---

const makeToken = $("#make-token");

// Resolves when the visitor says that it is kept. Escape does not close what cannot be shown again.
if (makeToken) {
  const dialog = $("#token"), text = $("#token-text"), details = makeToken.closest("details");
  on(dialog, "cancel", (event) => event.preventDefault());
  // What is typed is still there after a proof at an identity provider.
  const typing = [...all("input, select", makeToken)], typedToken = "token of " + signedIn;
  on(makeToken, "submit", () => hand(typedToken, JSON.stringify(typing.map(({ value, checked }) => [value, checked]))));
  const typedBefore = taken(typedToken);
  if (typedBefore && query.has("confirmed")) JSON.parse(typedBefore).forEach(([value, checked], place) => Object.assign(typing[place], { value, checked }));
  showToken = (token) => {
    text.textContent = token;
    offerCopy($("#token-copy"), token, text);
    makeToken.reset();
    details.open = false;
    openDialog(dialog, () => $("summary", details));
    $("#token-title").focus();
    return new Promise((resolve) => on(dialog, "close", () => {
      text.textContent = "";
      resolve();
    }, { once: true }));
  };
}
