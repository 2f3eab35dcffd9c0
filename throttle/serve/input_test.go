package serve

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	v2 "github.com/go-json-experiment/json"
)

// Bad input is answered in one line, with what to write instead, as the command line does, and takes nothing.
func TestBadInput(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	for _, row := range []struct {
		path, body string
		status     int
		text, try  string
	}{
		{"decide", ``, 400, "the body is not JSON at byte 1", `{"scope": "payments/acme"}`},
		{"decide", `[]`, 400, "the body is no JSON object", `{"scope": "payments/acme"}`},
		{"decide", `{"scope":"pay/a"} {}`, 400, "the body is not JSON at byte 19", `{"scope": "payments/acme"}`},
		{"decide", `{"scope":"pay/a","scope":"pay/b"}`, 400, `the field "scope" is given twice`, "each field once"},
		{"decide", `{"scopes":"pay/a"}`, 400, `there is no field "scopes"`, "did you mean scope?"},
		{"decide", `{"scope":"pay/a","keep":"1h"}`, 400, `there is no field "keep"`, "write scope, cost, id, wait or at_once"},
		{"decide", `{}`, 400, `scope "": is empty; write names divided by '/', such as payments/acme`, `"scope": "payments/acme"`},
		{"decide", `{"scope":7}`, 400, "the field scope has a value that cannot be read", `"scope": "payments/acme"`},
		{"decide", `{"scope":"pay/a","cost":0}`, 400, "the field cost has a value that cannot be read", `"cost": 1, or "cost": {"tokens": 500}`},
		{"decide", `{"scope":"pay/a","cost":1.5}`, 400, "the field cost has a value that cannot be read", `"cost": 1, or "cost": {"tokens": 500}`},
		{"decide", `{"scope":"pay/a","cost":{"tokens":-1}}`, 400, "", ""},
		{"decide", `{"scope":"pay/a","cost":4}`, 400, "", ""},
		{"decide", `{"scope":"pay/a","wait":5}`, 400, "the field wait has a value that cannot be read", `"wait": "10s"`},
		{"decide", `{"scope":"pay/a","wait":"-1s"}`, 400, "the field wait has a value that cannot be read", `"wait": "10s"`},
		{"decide", `{"scope":"pay/a","wait":"1m"}`, 400, "wait is 1m; the most is 20s", `"wait": "20s", and again after retry_ms`},
		{"decide", `{"scope":"pay/a","id":"` + strings.Repeat("x", 129) + `"}`, 400, "the id is 129 bytes long; the most is 128", `"id": "inv-1"`},
		{"decide", `{"scope":"pay"}`, 200, "", ""},
		{"decide", `{"scope":"other"}`, 404, "", "worker limits show, which lists the scopes"},
		{"decide", `{"scope":"pay/a","id":"` + "\xff" + `"}`, 400, "", ""},
		{"decide", `{"scope":"` + strings.Repeat("x", maxBody) + `"}`, 413, "the body is longer than 64 KiB", ""},
		{"reserve", `{"scope":"pay/a","keep":"2d"}`, 400, "keep is 2d; it is 1s to 24h", `"keep": "1h"`},
		{"settle", `{"scope":"pay/a","id":"x"}`, 400, "the field cost is missing", `"cost": {"tokens": 500}`},
		{"settle", `{"scope":"pay/a","id":"x","cost":3}`, 400, "the field cost has a value that cannot be read", `"cost": {"tokens": 500}`},
		{"settle", `{"scope":"pay/a","id":"x","cost":{"Tokens":3}}`, 400, "", ""},
		{"refund", `{"scope":"pay/a"}`, 400, "the field id is missing", `"id": "inv-1"`},
		{"report", `{"scope":"pay/a"}`, 400, "an answer has a status from 100 to 599, and a call without one has failed", `"status": 429, or "failed": true`},
		{"report", `{"scope":"pay/a","status":4290}`, 400, "an answer has a status from 100 to 599, and a call without one has failed", ""},
		{"settled", `{"scope":"pay/a"}`, 404, "no such path", "GET /v1/openapi.yaml, which has all"},
	} {
		code, answer, _ := a.ask(row.path, row.body)
		text, _ := answer["error"].(string)
		try, _ := answer["try"].(string)
		if code != row.status || row.text != "" && text != row.text || row.try != "" && try != row.try || strings.Contains(text+try, "\n") || code != 200 && text == "" {
			t.Errorf("%s %.60s: %d %q, try %q", row.path, row.body, code, text, try)
		}
	}
	a.wants("decide", `{"scope":"pay/a"}`, 200, `{"remaining":2}`)
}

// A web page can send a form or a text to any address, and no JSON.
func TestOnlyJSONIsRead(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	for _, row := range []struct {
		method, kind string
		status       int
	}{
		{http.MethodPost, "", 415},
		{http.MethodPost, "text/plain", 415},
		{http.MethodPost, "application/x-www-form-urlencoded", 415},
		{http.MethodPost, "Application/JSON ; charset=utf-8", 200},
		{http.MethodGet, "application/json", 405},
		{http.MethodPut, "application/json", 405},
	} {
		r := httptest.NewRequestWithContext(t.Context(), row.method, "/v1/decide", strings.NewReader(`{"scope":"pay/a"}`))
		r.Header.Set("Content-Type", row.kind)
		if status, answer, _ := a.do(r); status != row.status {
			t.Errorf("%s %q: %d %v", row.method, row.kind, status, answer)
		}
	}
}

// Whatever a body holds, the answer is one line of JSON with a status that openapi.yaml has.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{"scope":"pay/a","cost":{"tokens":1},"id":"x","wait":"1s","at_once":true}`, `{"scope":"llm","id":"x","cost":{"tokens":1}}`,
		`{"scope":"api","status":429,"headers":{"Retry-After":"1"},"body":"{}","host":"a:1","took_ms":5}`, `{"scope":"runs","keep":"1s"}`,
	} {
		for i := range 8 {
			f.Add(i, body)
		}
	}
	paths := []string{"decide", "reserve", "lease", "renew", "release", "settle", "refund", "report"}
	f.Fuzz(func(t *testing.T, path int, body string) {
		if strings.Contains(body, "wait") && !strings.Contains(body, "at_once") || strings.Contains(body, "connected") {
			t.Skip() // it may wait
		}
		a := newAPI(t, nil)
		_, answer, _ := a.ask(paths[uint(path)%8], body)
		if text, err := json.Marshal(answer); err != nil || len(text) > 16<<10 {
			t.Errorf("%d bytes, %v", len(text), err)
		}
	})
}

// Each body that docs/serve.md shows is one that a call reads, or an answer.
func TestBodiesOfTheDocs(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/serve.md")
	must(t, err)
	blocks := strings.Split(string(page), "```json\n")[1:]
	for _, block := range blocks {
		body, _, _ := strings.Cut(block, "```")
		reads := func(into any) bool { return v2.Unmarshal([]byte(body), into, v2.RejectUnknownMembers(true)) == nil }
		if !reads(new(askLease)) && !reads(new(settlement)) && !reads(new(apiAnswer)) && !reads(new(decision)) && !reads(new(fault)) {
			t.Errorf("no call reads %s", body)
		}
	}
	if len(blocks) < 6 {
		t.Errorf("there are %d", len(blocks))
	}
}
