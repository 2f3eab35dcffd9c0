package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/throttletest"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

const limits = `
limits:
  pay:
    rules: [{name: account, algorithm: sliding-window, limit: 1000, per: 1h}]
    scopes:
      "*":
        rules: [{name: tenant, algorithm: token-bucket, limit: 1, per: 1s, burst: 3}]
  llm:
    rules:
      - {name: tokens, algorithm: sliding-window, limit: 1000, per: 1h, unit: tokens}
  runs:
    rules:
      - {name: parallel, algorithm: concurrency, limit: 2, lease: 10s}
      - {name: hourly, algorithm: fixed-window, limit: 100, per: 1h}
  open: {rules: [{name: r, algorithm: fixed-window, limit: 5, per: 1h, on_redis_error: open}]}
  off: {rules: [{name: r, algorithm: fixed-window, limit: 0, per: 1h}]}
  held: {paused: true, rules: [{name: r, algorithm: fixed-window, limit: 5, per: 1h}]}
  keys:
    pool: {members: [a, b], choose: drain}
    scopes: {"@*": {rules: [{name: key, algorithm: fixed-window, limit: 5, per: 1h}]}}
  api:
    breaker: {failures: 50%, of: 2, wait: 10s}
    rules: [{name: r, algorithm: fixed-window, limit: 100, per: 1h}]
`

// api is a server under test, and the schema that its answers are checked against.
type api struct {
	t     *testing.T
	redis *throttletest.Redis
	h     http.Handler
	doc   *document
	token string
}

func newAPI(t *testing.T, clients *Clients) *api {
	t.Helper()
	l, redis := throttletest.NewWithRedis(t, throttletest.Policy(t, limits), throttle.Config{StartTolerance: -1})
	return &api{t: t, redis: redis, h: handlerOf(t, l, clients), doc: theDocument(t)}
}

// inBubble tests in fake time.
func inBubble(t *testing.T, test func(*testing.T, *api)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newAPI(t, nil)) })
}

func handlerOf(t *testing.T, l *throttle.Limiter, clients *Clients) *Handler {
	t.Helper()
	h, err := New(Config{Limiter: l, Clients: clients, Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	return h
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask posts a body, checks the answer against openapi.yaml, and returns it.
func (a *api) ask(path, body string) (status int, answer map[string]any, header http.Header) {
	a.t.Helper()
	r := httptest.NewRequestWithContext(a.t.Context(), http.MethodPost, "/v1/"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if a.token != "" {
		r.Header.Set("Authorization", "Bearer "+a.token)
	}
	return a.do(r)
}

func (a *api) do(r *http.Request) (status int, answer map[string]any, header http.Header) {
	a.t.Helper()
	w := httptest.NewRecorder()
	a.h.ServeHTTP(w, r)
	must(a.t, json.Unmarshal(w.Body.Bytes(), &answer))
	a.doc.check(a.t, r.URL.Path, w.Code, answer)
	if w.Header().Get("Content-Type") != "application/json" || strings.Count(w.Body.String(), "\n") != 1 {
		a.t.Errorf("%s: %v %s", r.URL.Path, w.Header(), w.Body)
	}
	return w.Code, answer, w.Header()
}

// wants asks, and compares the status and some fields of the answer.
func (a *api) wants(path, body string, status int, fields string) map[string]any {
	a.t.Helper()
	code, answer, _ := a.ask(path, body)
	var want map[string]any
	must(a.t, json.Unmarshal([]byte(fields), &want))
	for name, value := range want {
		got, _ := json.Marshal(answer[name])
		if text, _ := json.Marshal(value); !bytes.Equal(got, text) {
			a.t.Errorf("%s %s: %s is %s, want %s", path, body, name, got, text)
		}
	}
	if code != status {
		a.t.Errorf("%s %s: %d %v, want %d", path, body, code, answer, status)
	}
	return answer
}

func TestDecide(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, a *api) {
		a.wants("decide", `{"scope":"pay/a"}`, 200, `{"allowed":true,"rule":"tenant","rule_scope":"pay/a","limit":3,"remaining":2,"reset_ms":1000}`)
		for range 2 { // "an attempt is not charged again"
			a.wants("decide", `{"scope":"pay/a","cost":2,"id":"x"}`, 200, `{"allowed":true,"id":"x","remaining":0}`)
		}
		code, answer, header := a.ask("decide", `{"scope":"pay/a"}`)
		if code != 429 || answer["retry_ms"] != 1000.0 || answer["reason"] != "rule" || header.Get("Retry-After") != "1" ||
			!strings.Contains(header.Get("RateLimit"), `"pay/*:tenant";r=0;t=3`) {
			t.Errorf("%d %v %v", code, answer, header)
		}
		a.wants("decide", `{"scope":"llm","cost":{"tokens":300}}`, 200, `{"rule":"tokens","unit":"tokens","remaining":700}`)
		a.wants("decide", `{"scope":"llm","cost":{"tokens":0,"requests":0}}`, 200, `{"remaining":700}`) // a look
		a.wants("decide", `{"scope":"off"}`, 429, `{"reason":"suspended","retry_ms":null}`)
		a.wants("decide", `{"scope":"held"}`, 429, `{"reason":"paused","retry_ms":null}`)
		a.wants("decide", `{"scope":"keys/x"}`, 200, `{"member":"a"}`)
	})
}

// "A start of one's own": answers at once tell distinct starts, and nobody comes back at the same moment as others.
func TestTurns(t *testing.T) {
	t.Parallel()
	inBubble(t, func(_ *testing.T, a *api) {
		a.wants("decide", `{"scope":"pay/a","cost":3}`, 200, `{"wait_ms":null}`)
		for _, wait := range []string{"1000", "2000", "3000"} {
			a.wants("decide", `{"scope":"pay/a","wait":"3s","at_once":true}`, 200, `{"allowed":true,"wait_ms":`+wait+`}`)
		}
		a.wants("decide", `{"scope":"pay/a","wait":"3s","at_once":true}`, 429, `{"retry_ms":4000}`)
		a.wants("decide", `{"scope":"pay/a","wait":"3s"}`, 429, `{"retry_ms":4000}`) // at once, since no start can come in time
	})
}

// "While Redis does not answer, on_redis_error decides".
func TestWithoutRedis(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	a.wants("reserve", `{"scope":"open","id":"x"}`, 200, `{"degraded":null}`)
	a.redis.Close()
	a.wants("decide", `{"scope":"open"}`, 200, `{"allowed":true,"degraded":true}`)
	a.wants("reserve", `{"scope":"open","id":"y"}`, 200, `{"allowed":true,"degraded":true,"id":"y"}`)
	for path, body := range map[string]string{
		"decide": `{"scope":"pay/a"}`, "lease": `{"scope":"runs"}`, "renew": `{"scope":"open","id":"x"}`, "settle": `{"scope":"open","id":"x","cost":{"requests":2}}`,
		"refund": `{"scope":"open","id":"x"}`, "report": `{"scope":"pay/a","status":429}`,
	} {
		code, answer, header := a.ask(path, body)
		if code != 503 || header.Get("Retry-After") != "1" || strings.Contains(answer["error"].(string), "127.0.0.1") {
			t.Errorf("%s: %d %v", path, code, answer)
		}
	}
}

// What was reserved is settled and refunded at any server.
func TestReserve(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	other := *a
	other.h = handlerOf(t, a.h.(*Handler).cfg.Limiter, nil)
	id := a.wants("reserve", `{"scope":"llm","cost":{"tokens":600},"keep":"1h"}`, 200, `{"remaining":400}`)["id"].(string)
	ref := `{"scope":"llm","id":"` + id + `"`
	other.wants("settle", ref+`,"cost":{"tokens":100}}`, 200, `{"rules":[{"rule":"tokens","rule_scope":"llm","unit":"tokens","spent":100,"back":500}]}`)
	other.wants("settle", ref+`,"cost":{"tokens":2500}}`, 200, `{"rules":[{"rule":"tokens","rule_scope":"llm","unit":"tokens","spent":2500,"debt":1900,"over":500}]}`)
	other.wants("refund", ref+`}`, 200, `{"id":"`+id+`"}`)
	other.wants("refund", ref+`}`, 404, `{}`)
	a.wants("decide", `{"scope":"llm","cost":{"tokens":1000}}`, 200, `{"allowed":true}`)
	a.wants("settle", `{"scope":"llm","id":"unknown","cost":{"tokens":1}}`, 404, `{}`)
	a.wants("reserve", `{"scope":"off"}`, 429, `{"id":null}`)
}

// "A server that dies between the two": the same id brings the same grant, charged once, and it is stored then.
func TestReserveAgain(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	d, err := a.h.(*Handler).cfg.Limiter.Decide(t.Context(), throttle.Request{Scope: "llm", Costs: policy.Costs{"tokens": 600}, ID: "x"}) // and dies
	if err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	a.wants("settle", `{"scope":"llm","id":"x","cost":{"tokens":100}}`, 404, `{}`)
	a.wants("reserve", `{"scope":"llm","id":"x","cost":{"tokens":600}}`, 200, `{"remaining":400}`)
	a.wants("settle", `{"scope":"llm","id":"x","cost":{"tokens":100}}`, 200, `{"rules":[{"rule":"tokens","rule_scope":"llm","unit":"tokens","spent":100,"back":500}]}`)
}

func TestLease(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	look := func(remaining string) {
		t.Helper()
		a.wants("decide", `{"scope":"runs","cost":{"requests":0}}`, 200, `{"remaining":`+remaining+`}`)
	}
	a.wants("lease", `{"scope":"runs","id":"x"}`, 200, `{"id":"x","lease_ms":10000}`)
	a.wants("lease", `{"scope":"runs","id":"x"}`, 200, `{"id":"x"}`)
	look("1")
	for range 3 {
		a.redis.Advance(9 * time.Second)
		a.wants("renew", `{"scope":"runs","id":"x"}`, 200, `{"lease_ms":10000}`)
	}
	a.wants("lease", `{"scope":"runs","id":"y"}`, 200, `{}`)
	a.wants("lease", `{"scope":"runs","id":"z"}`, 429, `{"reason":"run","rule":"parallel"}`)
	a.wants("release", `{"scope":"runs","id":"x"}`, 200, `{}`)
	a.wants("renew", `{"scope":"runs","id":"x"}`, 410, `{}`)
	a.redis.Advance(10 * time.Second) // its client has died
	look("2")
	a.wants("renew", `{"scope":"runs","id":"y"}`, 410, `{}`)
	a.wants("lease", `{"scope":"pay/a","id":"v"}`, 200, `{"lease_ms":null}`)
	a.wants("renew", `{"scope":"pay/a","id":"v"}`, 200, `{"lease_ms":null}`)
}

// A lease of a connection ends with it, and the place is free for others.
func TestConnected(t *testing.T) {
	t.Parallel()
	a := newAPI(t, nil)
	server := httptest.NewServer(a.h)
	defer server.Close()
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/lease", strings.NewReader(`{"scope":"runs","id":"x","connected":true}`))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	line := make([]byte, 19)
	if _, err := io.ReadFull(resp.Body, line); err != nil || string(line) != `{"allowed":true,"id` {
		t.Fatalf("%q, %v", line, err)
	}
	left := func() any {
		_, answer, _ := a.ask("decide", `{"scope":"runs","cost":{"requests":0}}`)
		return answer["remaining"]
	}
	if n := left(); n != 1.0 {
		t.Errorf("%v places are left", n)
	}
	a.wants("settle", `{"scope":"runs","id":"x","cost":{"requests":3}}`, 200, `{}`)
	hangUp()
	redistest.WaitAsking(t, "the place to come free", 10*time.Second, func() bool { return left() == 2.0 })
}

func TestReport(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, a *api) {
		a.wants("report", `{"scope":"pay/a","status":200,"headers":{"X-Other":"1"}}`, 200, `{"limited":false,"failed":false}`)
		a.wants("report", `{"scope":"pay/a","status":429,"headers":{"retry-after":"30"},"host":"api.example.com","took_ms":100}`, 200,
			`{"limited":true,"retry_ms":30000,"paused_scope":"pay/a"}`)
		a.wants("decide", `{"scope":"pay/a"}`, 429, `{"reason":"upstream","retry_ms":30000}`)
		a.wants("decide", `{"scope":"pay/b"}`, 200, `{}`)
		id := a.wants("reserve", `{"scope":"keys/x"}`, 200, `{"member":"a"}`)["id"].(string)
		a.wants("report", `{"scope":"keys/x","status":429,"headers":{"Retry-After":"30"},"id":"`+id+`"}`, 200, `{"paused_scope":"keys/@a"}`)
		a.wants("decide", `{"scope":"keys/x"}`, 200, `{"member":"b"}`)
		var open any
		for i := 0; open == nil && i < 5; i++ {
			id := a.wants("reserve", `{"scope":"api/x"}`, 200, `{}`)["id"].(string)
			open = a.wants("report", `{"scope":"api/x","failed":true,"id":"`+id+`"}`, 200, `{"failed":true}`)["open_until"]
			<-time.After(time.Second)
		}
		if open == nil {
			t.Error("the breaker did not open")
		}
	})
}
