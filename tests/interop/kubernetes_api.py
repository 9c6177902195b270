"""An API server of Kubernetes that has some objects and answers what `lookup` of helm asks: nothing can be changed."""

import http.server
import json
import re
import threading

# Kinds of the chart by group: their plural names are what addresses have.
KINDS = {
    "v1": ["ConfigMap", "Secret", "Service", "ServiceAccount"],
    "apps/v1": ["StatefulSet"],
    "batch/v1": ["Job"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
}


def plural(kind):
    return re.sub("ys$", "ies", f"{kind.lower()}s")


class Api:
    """Started at once; `address` is for helm's --kube-apiserver."""

    def __init__(self, objects):
        self.objects = objects
        api = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                found = api.answer(self.path.partition("?")[0])
                text = json.dumps(found or {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound",
                                            "code": 404}).encode()
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *words):
                """Nothing: helm's own message is enough."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path):
        """The answer to GET of a path; None: there is no such thing."""
        if path == "/version":
            return {"major": "1", "minor": "35", "gitVersion": "v1.35.0"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = [(group, group.partition("/")[0]) for group in KINDS if "/" in group]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                {"name": name, "versions": [{"groupVersion": group, "version": "v1"}]} for group, name in groups]}
        group, _, rest = path.removeprefix("/apis/").removeprefix("/api/").partition("/namespaces/")
        if group not in KINDS:
            return None
        if not rest:
            return {"kind": "APIResourceList", "groupVersion": group, "resources": [
                {"name": plural(kind), "kind": kind, "namespaced": True, "verbs": ["get", "list"]} for kind in KINDS[group]]}
        found = [each for each in self.objects if each["apiVersion"] == group and plural(each["kind"]) == rest.split("/")[1]]
        if rest.count("/") == 1:
            return {"kind": "List", "apiVersion": group, "metadata": {}, "items": found}
        return next((each for each in found if each["metadata"]["name"] == rest.split("/")[2]), None)
