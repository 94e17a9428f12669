// --- the user's own sessions ---

// Shortens a User-Agent to "Firefox · Linux".
function device(agent) {
  const browser = /Edg|OPR|Firefox|Chrome|Safari|curl/.exec(agent);
  const system = /Android|iPhone|iPad|Windows|Mac OS X|Linux/.exec(agent);
  const names = { Edg: "Edge", OPR: "Opera", "Mac OS X": "macOS" };
  return [browser, system].filter(Boolean).map(([name]) => names[name] || name).join(" · ") || agent;
}

async function listSessions() {
  const result = await ask("GET", "/api/users/me/sessions");
  if (!result) return;
  $("#session-list").replaceChildren(...result.sessions.map(sessionItem));
  $("#end-others").hidden = result.sessions.length < 2;
}

function sessionItem(session) {
  const agent = session.user_agent || "";
  const name = [device(agent) || session.name, session.ip].filter(Boolean).join(" · ");
  const used = session.current ? t("profile.here") : t("profile.last-used", { time: localTime(session.last_used_at || session.created_at) });
  const item = make("li", "", make("span", "", name, " ", make("span", session.current ? "badge" : "hint", used)));
  item.title = agent;
  if (session.current) return item;
  item.append(makeButton(t("profile.end"), name, async () => {
    if (await ask("DELETE", "/api/users/me/sessions/" + session.id)) say(t("profile.ended"));
    await listSessions();
    $("#sessions").focus();
  }));
  return item;
}

listSessions();
on(document, "changed", listSessions);
