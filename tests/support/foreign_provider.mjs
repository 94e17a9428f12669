// An OpenID provider that nobody here wrote, on a free port of this machine.
// node foreign_provider.mjs FOLDER_OF_OIDC_PROVIDER SETTINGS_AS_JSON
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [folder, settings] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));
const { client, people } = JSON.parse(settings);

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [client],
    claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "picture"] },
    cookies: { keys: ["only for a test"] },
    features: { devInteractions: { enabled: true } },
    findAccount: (_, id) => people[id] && { accountId: id, claims: () => ({ sub: id, ...people[id] }) },
    pkce: { required: () => true },
  });
  server.on("request", provider.callback());
  console.log(JSON.stringify({ issuer }));
});
process.stdin.on("end", () => process.exit()).resume(); // goes with whoever started it
