<!-- {{notice}} -->

# HTTP endpoints

{{api["info"]["description"]}}

Cookies, limits and lists: [The HTTP interface](../http.md). The daemon serves this reference as a page at
`/api/users/docs`, and as OpenAPI at `/api/users/openapi.json`; `usersctl openapi` prints it.
% for tag in api["tags"]:

## {{tag["name"]}}

% mine = [(call, operation) for call, operation in calls if operation["tags"] == [tag["name"]]]
% rows = [(call, caller(operation), operation["summary"]) for call, operation in mine]
{{table(("call", "who may call", "what it does"), rows)}}
% for call, operation in mine:

### {{call}}

**{{operation["summary"]}}**

{{operation["description"]}}

% if operation["parameters"]:
{{table(("parameter", "in", "type", "meaning"), query(operation))}}

% end
% sent = fields(body(api, operation["requestBody"]["content"]["application/json"]["schema"])) if "requestBody" in operation else []
% if sent:
{{table(("body", "type", "meaning"), sent)}}

% end
% for status, response in operation["responses"].items():
% if "$ref" not in response:
- `{{status}}` {{response["description"]}}{{details(api, status, response)}}
% end
% end
% shared = [f"`{status}`" for status, response in operation["responses"].items() if "$ref" in response]
- {{", ".join(shared)}}: see [errors](#errors)
% end
% end

## Objects
% for name, schema in api["components"]["schemas"].items():
% if "title" not in schema:

### {{name}}

% if "properties" in schema:
{{table(("field", "type", "meaning"), fields(schema))}}
% else:
A {{kind(schema)}}. {{schema["description"]}}
% end
% end
% end

## Errors

Every error is an [Error](#error); at a path for browsers, one that is about to show a 400, 403, 404, 500 or 503 gets a page.

{{table(("status", "meaning"), [(status, response["description"]) for status, response in api["components"]["responses"].items() if status.isdecimal()])}}
