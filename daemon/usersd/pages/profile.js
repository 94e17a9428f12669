// --- the new address that waits for its proof ---

const claimCard = $("#claim"), emailField = $("#email");
// Not its value, which a user may have typed before this runs.
let called = emailField?.defaultValue;

async function showClaim() {
  if (!claimCard) return; // the account needs a second factor first
  const result = await ask("GET", "/api/users/me/email");
  if (!result) return;
  const { email, claim } = result;
  // The button that took the claim back disappears with it.
  if (!claim && claimCard.contains(document.activeElement)) $("#notes .note")?.focus();
  claimCard.hidden = !claim;
  // Only after a change of the address: otherwise this would replace what the user is typing.
  if (called !== (claim || result).email) emailField.value = emailField.defaultValue = called = (claim || result).email;
  if (!claim) return;
  const text = $("#claim-text");
  text.textContent = fill(text.dataset.text, { email, claim: claim.email, time: localTime(claim.expires_at) });
}

showClaim();
on(document, "changed", () => {
  showClaim();
  refresh();
});
