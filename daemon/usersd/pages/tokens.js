// --- API tokens of the own account ---

const makeToken = $("#make-token");

// Resolves when the visitor says that it is kept. Escape does not close what cannot be shown again.
if (makeToken) {
  const dialog = $("#token"), text = $("#token-text");
  on(dialog, "cancel", (event) => event.preventDefault());
  showToken = (token) => {
    text.textContent = token;
    offerCopy($("#token-copy"), token);
    makeToken.reset();
    makeToken.closest("details").open = false;
    openDialog(dialog);
    $("#token-title").focus();
    return new Promise((resolve) => on(dialog, "close", () => {
      text.textContent = "";
      resolve();
    }, { once: true }));
  };
}
