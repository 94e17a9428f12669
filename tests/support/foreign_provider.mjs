// An OpenID provider that nobody here wrote, on a free port of this machine. GET /rotate gives it new keys.
// node foreign_provider.mjs FOLDER_OF_OIDC_PROVIDER SETTINGS_AS_JSON
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [folder, settings] = process.argv.slice(2);
const { Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));
const { client, people } = JSON.parse(settings);

const privateKey = (type, options) => generateKeyPairSync(type, options).privateKey.export({ format: "jwk" });
const makeKeys = () => [
  { ...privateKey("rsa", { modulusLength: 2048 }), use: "sig" },
  { ...privateKey("ec", { namedCurve: "P-256" }), use: "sig" },
  { ...privateKey("ed25519"), use: "sig" },
];
const enabled = { enabled: true };

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const start = () =>
    new Provider(issuer, {
      clients: [client],
      claims: { openid: ["sub"], email: ["email", "email_verified"], profile: ["name", "picture"] },
      cookies: { keys: ["only for a test"] },
      enabledJWA: { idTokenSigningAlgValues: ["HS256", "RS256", "PS256", "ES256", "EdDSA"] },
      features: {
        devInteractions: enabled,
        encryption: enabled,
        jwtUserinfo: enabled,
        pushedAuthorizationRequests: enabled,
      },
      findAccount: (_, id) => people[id] && { accountId: id, claims: () => ({ sub: id, ...people[id] }) },
      jwks: { keys: makeKeys() },
      pairwiseIdentifier: (_, id) => `pairwise ${id}`,
      pkce: { required: () => true },
      subjectTypes: ["public", "pairwise"],
    }).callback();
  let answer = start();
  server.on("request", (request, response) => {
    if (request.url === "/rotate") {
      answer = start();
      response.end();
    } else {
      answer(request, response);
    }
  });
  console.log(JSON.stringify({ issuer }));
});
process.stdin.on("end", () => process.exit()).resume(); // goes with whoever started it
