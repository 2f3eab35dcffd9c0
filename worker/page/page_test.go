package page

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

func TestMain(m *testing.M) {
	bcryptCost = 4
	os.Exit(redistest.Main(m))
}

const testLimits = `limits:
  payments:
    owner: team-pay
    rules: [{name: account, algorithm: fixed-window, limit: 2, per: 30d}]
    scopes:
      "*": {rules: [{name: tenant, algorithm: sliding-window, limit: 50, per: 1h}, {name: trial, algorithm: sliding-window, limit: 3, per: 1h, shadow: true}]}
      acme: {owner: team-acme, breaker: {of: 1000}}
  search: {rules: [{name: plan, algorithm: sliding-window, limit: 1000, per: 1h}]}
  off: {rules: [{name: none, algorithm: sliding-window, limit: 0, per: 1s}]}
`

// anyProvider has rules for every provider.
const anyProvider = testLimits + `  "*": {rules: [{name: any, algorithm: fixed-window, limit: 1, per: 30d}]}
`

// site is a page over a Redis with limits and tasks that wait.
type site struct {
	t       *testing.T
	server  *redistest.Server
	rdb     *redis.Client
	limiter *throttle.Limiter
	store   *policystore.Store
	queue   *queue.Client
	handler http.Handler
	actor   Actor // who asks, if Config.Identify is that of newSite
}

// newSite returns a site whose asker is an admin, unless change says otherwise.
func newSite(t *testing.T, change func(*Config)) *site {
	t.Helper()
	return newSiteUnder(t, testLimits, change)
}

func newSiteUnder(t *testing.T, limits string, change func(*Config)) *site {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	must(t, err)
	s := &site{t: t, server: redistest.NewServer(t), actor: Actor{Name: "root", Role: RoleAdmin}}
	s.rdb = s.server.Client(t)
	s.limiter, err = throttle.New(s.rdb, p, throttle.Config{})
	must(t, err)
	s.store = policystore.New(s.rdb, policystore.Config{})
	_, _, err = s.store.PublishFile(t.Context(), "worker", p, false)
	must(t, err)
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.limiter, App: "billing"})
	cfg := Config{Redis: s.rdb, Identify: func(*http.Request) (Actor, bool) { return s.actor, true }}
	if change != nil {
		change(&cfg)
	}
	s.handler, err = New(cfg)
	must(t, err)
	return s
}

// enqueue has tasks wait in a scope, under the ids a0, a1 and so on, after its limits are used up.
func (s *site) enqueue(scope, id string, n int) {
	s.t.Helper()
	for i := range n {
		task := queue.Task{Type: "mail", ID: fmt.Sprint(id, i), Scope: scope, Payload: []byte(`{"secret":"4711"}`)}
		if r, err := s.queue.Enqueue(s.t.Context(), task); err != nil || r.State != queue.Enqueued {
			s.t.Fatalf("%+v, %v", r, err)
		}
	}
}

// use takes units until none are left.
func (s *site) use(scope string) {
	s.t.Helper()
	for {
		if d, err := s.limiter.Allow(s.t.Context(), scope); err != nil || !d.Allowed {
			return
		}
	}
}

// do makes a request.
func (s *site) do(r *http.Request) (int, string, http.Header) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second) // a stream that is not refused ends too
	defer cancel()
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r.WithContext(ctx))
	body, err := io.ReadAll(w.Result().Body)
	must(s.t, err)
	return w.Code, string(body), w.Header()
}

func (s *site) get(path string) (int, string) {
	s.t.Helper()
	code, body, _ := s.do(httptest.NewRequest(http.MethodGet, path, nil))
	return code, body
}

// post sends a form as the page's own would be sent.
func (s *site) post(path string, fields url.Values) (int, string) {
	s.t.Helper()
	code, body, _ := s.do(formTo(path, fields))
	return code, body
}

// sees gets a screen, which must have a code and all of some texts.
func (s *site) sees(code int, path string, texts ...string) (body string) {
	s.t.Helper()
	return s.says(code, httptest.NewRequest(http.MethodGet, path, nil), texts...)
}

// sends posts a form, which must be answered with a code and all of some texts.
func (s *site) sends(code int, path string, fields url.Values, texts ...string) (body string) {
	s.t.Helper()
	return s.says(code, formTo(path, fields), texts...)
}

func (s *site) says(code int, r *http.Request, texts ...string) (body string) {
	s.t.Helper()
	got, body, _ := s.do(r)
	if got != code {
		s.t.Errorf("%s %s at %s %v: %d, want %d\n%s", r.Method, r.URL, r.Host, r.Header, got, code, body)
	}
	has(s.t, body, texts...)
	return body
}

func formTo(path string, fields url.Values) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(fields.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

// has fails unless a body has all of some texts.
func has(t *testing.T, body string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if !strings.Contains(body, text) {
			t.Errorf("there is no %q in\n%s", text, body[max(0, strings.Index(body, "<main")):])
		}
	}
}

// lacks fails if a body has one of some texts.
func lacks(t *testing.T, body string, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if strings.Contains(body, text) {
			t.Errorf("there is %q in\n%s", text, body[max(0, strings.Index(body, "<main")):])
		}
	}
}

// Each screen shows what the command line answers.
func TestScreens(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 3)
	for path, texts := range map[string][]string{
		"/":                                   {">payments</a>", "team-pay", "Waiting", "Suspended", "<strong>2</strong> of 2"},
		"/?q=sea":                             {">search</a>"},
		"/?state=suspended":                   {">off</a>"},
		"/scope?scope=payments/acme":          {"waits for account of payments", "binds", "inv0", "limit: 50", "trial", "team-acme"},
		"/scope?scope=payments":               {">acme</a>", "fixed-window"},
		"/waiters?scope=payments/acme":        {"inv0", "inv2", "account of payments", "billing", "mail"},
		"/waiters?scope=payments/acme&page=7": {"inv0", "inv2"}, // a page past the end is the last one
		"/task?id=inv1":                       {"Waits for account of payments, place 2, starts about", "payments/acme", "4711", "by billing"},
		"/history":                            {"in force", "worker"},
		"/workers":                            {"No server runs", "default"},
		"/forecast":                           {"Forecast"},
	} {
		s.sees(http.StatusOK, path, texts...)
	}
	lacks(t, s.sees(http.StatusOK, "/?q=sea"), ">payments</a>")
	for path, want := range map[string]int{
		"/nothing": 404, "/task?id=none": 404, "/task": 400, "/scope?scope=": 400, "/scope?scope=a//b": 400, "/waiters?scope=": 400,
	} {
		s.sees(want, path)
	}
	batch := form("batch", `{"type":"mail","id":"x","scope":"payments/acme"}`+"\n{bad")
	s.sends(http.StatusOK, "/forecast", batch, "would be enqueued", "payments/acme", "bad lines")
	_, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna", For: time.Hour}, "search")
	must(t, err)
	redistest.WaitFor(t, "the forecast under a pause", 20*time.Second, func() bool {
		_, body := s.post("/forecast", url.Values{"batch": {`{"type":"mail","id":"y","scope":"search"}`}})
		return strings.Contains(body, "bound by the pause of search")
	})
	if code, body := s.get("/history.ndjson"); code != http.StatusOK || !strings.HasPrefix(body, `{"version":1,`) {
		t.Errorf("%d %s", code, body)
	}
}

// No name from a task or a file becomes markup, on any screen.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, anyProvider, nil)
	const hostile = `<script>alert(1)<'">`
	s.use(hostile)
	s.enqueue(hostile, hostile, 2)
	s.enqueue(hostile+"/..", "dots", 1)
	edit := policystore.Edit{By: hostile, Reason: hostile}
	_, err := s.store.Set(t.Context(), edit, hostile, hostile, map[string]string{"algorithm": "fixed-window", "limit": "1", "per": "24h"})
	must(t, err)
	q := url.QueryEscape
	for _, path := range []string{
		"/?q=" + q(hostile), "/?q=", "/scope?scope=" + q(hostile), "/waiters?scope=" + q(hostile), "/task?id=" + q(hostile+"0"), "/history?q=" + q(hostile),
		"/drain?scope=" + q(hostile), "/workers?q=" + q(hostile), "/forecast?batch=" + q(hostile), "/task?id=" + q(hostile), "/scope?scope=" + q(hostile+"/.."), "/nothing" + q(hostile),
		"/limits?q=" + q(hostile), "/change?verb=assign&scope=" + q(hostile),
	} {
		code, body := s.get(path)
		if strings.Contains(body, "<script>alert") || code == http.StatusInternalServerError {
			t.Errorf("%s: %d\n%s", path, code, body)
		}
	}
	for _, path := range []string{"/", "/scope?scope=" + q(hostile), "/drain?scope=" + q(hostile), "/waiters?scope=" + q(hostile), "/task?id=" + q(hostile+"0"), "/history"} {
		s.sees(http.StatusOK, path, "&lt;script&gt;alert(1)")
	}
}

// A viewer of named scopes sees no others, on no screen, and only admins and the owner of a scope see its payloads.
func TestWhoSeesWhat(t *testing.T) {
	t.Parallel()
	file, err := schedule.Parse("schedules.yaml", []byte("schedules:\n  nightly: {cron: \"0 3 * * *\", task: {type: mail, scope: payments/acme}}\n"))
	must(t, err)
	s := newSite(t, func(c *Config) { c.Schedules = file.Schedules })
	s.use("payments")
	s.enqueue("payments/acme", "inv", 1)
	_, err = s.store.Set(t.Context(), policystore.Edit{By: "anna"}, "search", "plan", map[string]string{"limit": "7"})
	must(t, err)
	s.sees(http.StatusOK, "/workers", "nightly", "0 3 * * *", "payments/acme")
	s.actor = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	lacks(t, s.sees(http.StatusOK, "/", "search</a>"), "payments</a>")
	lacks(t, s.sees(http.StatusOK, "/workers"), "nightly")
	for path, want := range map[string]int{
		"/scope?scope=payments": 403, "/waiters?scope=payments/acme": 403,
		"/live?at=" + url.QueryEscape("/scope?scope=payments"): 403, "/scope?scope=search": 200,
	} {
		s.sees(want, path)
	}
	s.sends(http.StatusOK, "/forecast", form("batch", `{"type":"mail","scope":"payments/acme"}`), "vic may not see payments/acme")
	for _, one := range []struct {
		actor   Actor
		code    int
		payload bool
	}{
		{Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}, 404, false},
		{Actor{Name: "olga", Groups: []string{"team-search"}, Role: RoleOwner, Scopes: []string{"search"}}, 404, false},
		{Actor{Name: "vic", Role: RoleViewer}, 200, false},
		{Actor{Name: "olga", Role: RoleOwner}, 200, false},
		{Actor{Name: "olga", Groups: []string{"team-acme"}, Role: RoleOwner}, 200, true},
		{Actor{Name: "root", Role: RoleAdmin}, 200, true},
	} {
		s.actor = one.actor
		says := map[int]string{404: "no queue has a task inv0", 200: `<a href="/scope?scope=payments%2Facme">payments/acme</a>`}[one.code]
		body := s.sees(one.code, "/task?id=inv0", says)
		if strings.Contains(body, "4711") != one.payload || one.code == 404 && strings.Contains(body, "payments%2F") {
			t.Errorf("%+v, want the payload %t:\n%s", one.actor, one.payload, body)
		}
	}
}

// "CSP script-src 'self'", cross-origin protection, no sniffing and no frames, of every answer.
func TestHeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *Config) { c.Prefix = "/limits" })
	for _, path := range []string{"/limits/", "/limits/assets/page.js", "/limits/nothing", "/limits"} {
		_, _, header := s.do(httptest.NewRequest(http.MethodGet, path, nil))
		csp := header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "script-src 'self';") || !strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") ||
			header.Get("X-Content-Type-Options") != "nosniff" || header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %v", path, header)
		}
	}
	for path, want := range map[string]int{"/limitsfoo": 404, "/limits//scope": 404, "/limits/../limits/": 404, "/": 404, "/limits": 308} {
		code, _, header := s.do(httptest.NewRequest(http.MethodGet, path, nil))
		if at := header.Get("Location"); code != want || at != "" && at != "/limits/" || header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %d to %q", path, code, at)
		}
	}
	_, body, _ := s.do(httptest.NewRequest(http.MethodGet, "/limits/", nil))
	has(t, body, `href="/limits/assets/page.css`, `href="/limits/history"`, `href="/limits/scope?scope=payments"`)
	lacks(t, body, "style=", "onclick", "<script>")
	r := formTo("/limits/forecast", url.Values{"batch": {"{}"}})
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	if code, _, _ := s.do(r); code != http.StatusForbidden {
		t.Errorf("a form of another site: %d", code)
	}
}

// pageOfSite is a page over the same Redis whose inside can be looked at.
func pageOfSite(t *testing.T, s *site) *handler {
	t.Helper()
	h, err := newHandler(Config{Redis: s.rdb, Identify: func(*http.Request) (Actor, bool) { return s.actor, true }})
	must(t, err)
	return h
}

// While Redis does not answer, a screen shows its last state and reads itself again, also without JavaScript. A form is not sent again.
func TestRedisGone(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, path := range []string{"/", "/history"} {
		if code, body, header := s.do(httptest.NewRequest(http.MethodGet, path, nil)); code != http.StatusOK || header.Get("Refresh") != "" || strings.Contains(body, `http-equiv="refresh"`) {
			t.Fatalf("%s: %d\n%s", path, code, body)
		}
	}
	stream := liveOf(t, s, "/", http.Cookie{})
	s.server.Stop(t)
	held, err := net.Listen("tcp", s.server.Addr()) // so that no server of another test has the port
	must(t, err)
	go func() {
		for one, err := held.Accept(); err == nil; one, err = held.Accept() {
			_ = one.Close()
		}
	}()
	stream.until(t, "stale")
	s.sees(http.StatusOK, "/", `<noscript><meta http-equiv="refresh" content="5"></noscript>`, "Redis does not answer", ">search</a>")
	for path, want := range map[string]int{"/history": http.StatusOK, "/scope?scope=search": http.StatusServiceUnavailable, "/limits": http.StatusServiceUnavailable} {
		if code, body, header := s.do(httptest.NewRequest(http.MethodGet, path, nil)); code != want || header.Get("Refresh") != "5" || !strings.Contains(body, "by itself") {
			t.Errorf("%s: %d, Refresh %q\n%s", path, code, header.Get("Refresh"), body)
		}
	}
	code, body, header := s.do(formTo("/change", form("verb", "pause", "scope", "search")))
	if code != http.StatusServiceUnavailable || header.Get("Refresh") != "" || strings.Contains(body, "by itself") || !strings.Contains(body, "Go back and send it again") {
		t.Errorf("a form: %d, Refresh %q\n%s", code, header.Get("Refresh"), body)
	}
	must(t, held.Close())
	s.server.Restart(t)
	redistest.WaitFor(t, "the page to come back", 20*time.Second, func() bool {
		code, body := s.get("/")
		return code == http.StatusOK && !strings.Contains(body, "Redis does not answer")
	})
}

// The search finds a scope or a task by its name. If there is none, it offers what is near, as each screen of an unknown scope does.
func TestFind(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/globex", "inv", 2)
	s.enqueue("payments/globex/eu", "acme-", 1)
	to := func(q string) string {
		t.Helper()
		code, body, header := s.do(httptest.NewRequest(http.MethodGet, "/search?q="+url.QueryEscape(q), nil))
		if code != http.StatusSeeOther {
			return body
		}
		return header.Get("Location")
	}
	for q, want := range map[string]string{
		"": "/", "payments/acme": "/scope?scope=payments%2Facme", "/payments/globex/": "/scope?scope=payments%2Fglobex", "inv1": "/task?id=inv1", "search": "/scope?scope=search",
	} {
		if got := to(q); got != want {
			t.Errorf("%q leads to %s", q, got)
		}
	}
	const toGlobex = `<a href="/scope?scope=payments%2Fglobex">payments/globex</a>`
	for path, wants := range map[string][]string{
		"/search?q=globex": {toGlobex}, "/search?q=payments/globx": {toGlobex}, "/search?q=serach": {`<a href="/scope?scope=search">search</a>`},
		"/search?q=nothing-like-it":   {"there is no scope nothing-like-it, and no queue has a task"},
		"/scope?scope=payments/acmee": {"there is no scope payments/acmee", `<a href="/scope?scope=payments%2Facme">payments/acme</a>`},
		"/scope?scope=inv0":           {"there is no scope inv0", `task <a href="/task?id=inv0">inv0</a>`}, "/waiters?scope=payments/globx": {toGlobex}, "/drain?scope=payments/globx": {toGlobex},
		"/task?id=payments/globex": {toGlobex},
	} {
		s.sees(http.StatusNotFound, path, wants...)
	}
	_, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", ID: "search", Scope: "payments/acme"})
	must(t, err)
	has(t, to("search"), "Several are named search", `scope <a href="/scope?scope=search">`, `task <a href="/task?id=search">`)

	s.actor = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	for _, path := range []string{"/search?q=payments/globex", "/search?q=inv0", "/search?q=globex", "/task?id=inv0"} {
		lacks(t, s.sees(http.StatusNotFound, path), "payments%2F", "/task?id=inv0")
	}
}
