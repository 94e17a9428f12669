// --- API tokens of the own account ---

const makeToken = $("#make-token");

// Resolves when the visitor says that it is kept. Escape does not close what cannot be shown again.
if (makeToken) {
  const dialog = $("#token"), text = $("#token-text"), details = makeToken.closest("details");
  on(dialog, "cancel", (event) => event.preventDefault());
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
