// --- dialogs, and a question before an action ---
// A button with data-close closes its dialog. Escape closes it, too.

// `back` returns the element that gets the focus afterwards, for the case that a new list has replaced the old one.
function openDialog(dialog, back) {
  clearNotes();
  dialog.showModal();
  on(dialog, "close", () => {
    const focused = document.activeElement;
    if (focused === document.body || dialog.contains(focused)) back?.()?.focus();
  }, { once: true });
}

for (const button of all("[data-close]")) on(button, "click", () => button.closest("dialog").close());

// Asks in the dialog of question.html; resolves to true if `act`, the text of its main button, is pressed.
function sure(title, text, act, back, look = "danger") {
  const dialog = $("#question");
  const yes = $("#question-yes");
  $("#question-title").textContent = title;
  $("#question-text").textContent = text;
  yes.textContent = act;
  yes.className = look;
  dialog.returnValue = "";
  yes.onclick = () => dialog.close("yes");
  openDialog(dialog, back);
  return new Promise((resolve) => {
    on(dialog, "close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
