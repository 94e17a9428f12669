// --- the audit trail: the check of its chain, step by step ---

const chainState = $("#chain-state");

async function checkChain() {
  let step = { next: 0, rows: 0 };
  do {
    const query = step.next ? `?after=${step.next}&rows=${step.rows}` : "";
    step = await ask("GET", "/api/audit/check" + query);
    if (!step) return;
    showStep(step);
  } while (step.next);
}

function showStep({ intact, rows, of: all, first_broken: id, next }) {
  const numbers = { n: rows.toLocaleString(lang), all: all.toLocaleString(lang), id };
  let text = next ? "audit.checking" : "audit.chain.whole";
  if (!intact) text = id ? "audit.broken.row" : "audit.broken.end";
  chainState.className = intact ? "" : "note bad";
  // Read aloud at the end only.
  chainState.setAttribute("aria-live", next ? "off" : "polite");
  chainState.textContent = t(text, numbers);
}

for (const button of all("#check")) {
  button.hidden = false;
  onPress(button, checkChain);
}
