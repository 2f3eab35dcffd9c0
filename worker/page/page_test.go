package page

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headway-go/headway/queue"
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
      acme: {owner: team-acme}
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
	who     Actor // who asks, if Config.Identify is that of newSite
}

// newSite returns a site whose asker is an admin, unless change says otherwise.
func newSite(t *testing.T, change func(*Config)) *site {
	t.Helper()
	return newSiteUnder(t, testLimits, change)
}

func newSiteUnder(t *testing.T, limits string, change func(*Config)) *site {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, server: redistest.NewServer(t), who: Actor{Name: "root", Role: RoleAdmin}}
	s.rdb = s.server.Client(t)
	if s.limiter, err = throttle.New(s.rdb, p, throttle.Config{}); err != nil {
		t.Fatal(err)
	}
	s.store = policystore.New(s.rdb, policystore.Config{})
	if _, _, err := s.store.PublishFile(t.Context(), "worker", p, nil); err != nil {
		t.Fatal(err)
	}
	s.queue = queue.NewClient(s.rdb, queue.ClientConfig{Limiter: s.limiter, App: "billing"})
	cfg := Config{Redis: s.rdb, Identify: func(*http.Request) (Actor, bool) { return s.who, true }}
	if change != nil {
		change(&cfg)
	}
	if s.handler, err = New(cfg); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		s.t.Fatal(err)
	}
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

// Each screen shows what the command line answers.
func TestScreens(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 3)
	for path, texts := range map[string][]string{
		"/":                            {">payments</a>", "team-pay", "Waiting", "Suspended", "<strong>2</strong> of 2"},
		"/?q=sea":                      {">search</a>"},
		"/?state=suspended":            {">off</a>"},
		"/scope?scope=payments/acme":   {"waits for account of payments", "binds", "inv0", "limit: 50", "trial", "team-acme"},
		"/scope?scope=payments":        {">acme</a>", "fixed-window"},
		"/waiters?scope=payments/acme": {"inv0", "inv2", "account of payments", "billing", "mail"},
		"/task?id=inv1":                {"Waits for account of payments, place 2, starts about", "payments/acme", "4711", "by billing"},
		"/history":                     {"in force", "worker"},
		"/workers":                     {"No server runs", "default"},
		"/forecast":                    {"Forecast"},
	} {
		if code, body := s.get(path); code != http.StatusOK {
			t.Errorf("%s: %d\n%s", path, code, body)
		} else {
			t.Run(path, func(t *testing.T) { has(t, body, texts...) })
		}
	}
	if _, body := s.get("/?q=sea"); strings.Contains(body, ">payments</a>") {
		t.Error("the filter keeps what does not match")
	}
	for path, want := range map[string]int{
		"/nothing": 404, "/task?id=none": 404, "/task": 400, "/scope?scope=": 400, "/scope?scope=a//b": 400, "/waiters?scope=": 400,
	} {
		if code, _ := s.get(path); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	code, body := s.post("/forecast", url.Values{"batch": {`{"type":"mail","id":"x","scope":"payments/acme"}` + "\n{bad"}})
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	has(t, body, "would be enqueued", "payments/acme", "bad lines")
	if _, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna", For: time.Hour}, "search"); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the forecast under a pause", 20*time.Second, func() bool {
		_, body := s.post("/forecast", url.Values{"batch": {`{"type":"mail","id":"y","scope":"search"}`}})
		return strings.Contains(body, "bound by the pause of search")
	})
	if code, body := s.get("/history.ndjson"); code != http.StatusOK || !strings.HasPrefix(body, `{"version":1,`) {
		t.Errorf("%d %s", code, body)
	}
}

// Names come from tasks and files: none of them becomes markup, on any screen.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, anyProvider, nil)
	const hostile = `<script>alert(1)<'">`
	const trap = "<script>alert"
	s.use(hostile)
	s.enqueue(hostile, hostile, 2)
	s.enqueue(hostile+"/..", "dots", 1)
	edit := policystore.Edit{By: hostile, Reason: hostile}
	if _, err := s.store.Set(t.Context(), edit, hostile, hostile, map[string]string{"algorithm": "fixed-window", "limit": "1", "per": "24h"}); err != nil {
		t.Fatal(err)
	}
	q := url.QueryEscape
	for _, path := range []string{
		"/?q=" + q(hostile), "/?q=", "/scope?scope=" + q(hostile), "/waiters?scope=" + q(hostile), "/task?id=" + q(hostile+"0"), "/history?q=" + q(hostile),
		"/drain?scope=" + q(hostile), "/workers?q=" + q(hostile), "/forecast?batch=" + q(hostile), "/task?id=" + q(hostile), "/scope?scope=" + q(hostile+"/.."), "/nothing" + q(hostile),
		"/limits?from=" + q(hostile), "/limits?from=1&noted=" + q(hostile), "/change?verb=assign&scope=" + q(hostile),
	} {
		code, body := s.get(path)
		if strings.Contains(body, trap) || code == http.StatusInternalServerError {
			t.Errorf("%s: %d\n%s", path, code, body)
		}
	}
	for _, path := range []string{"/", "/scope?scope=" + q(hostile), "/drain?scope=" + q(hostile), "/waiters?scope=" + q(hostile), "/task?id=" + q(hostile+"0"), "/history"} {
		if code, body := s.get(path); code != http.StatusOK || !strings.Contains(body, "&lt;script&gt;alert(1)") {
			t.Errorf("%s does not show the name: %d\n%s", path, code, body)
		}
	}
}

// A viewer of named scopes sees no others, on no screen, and nobody but who owns a scope sees its payloads.
func TestWhoSeesWhat(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 1)
	if _, err := s.store.Set(t.Context(), policystore.Edit{By: "anna"}, "search", "plan", map[string]string{"limit": "7"}); err != nil {
		t.Fatal(err)
	}
	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	if code, body := s.get("/"); code != http.StatusOK || strings.Contains(body, "payments</a>") || !strings.Contains(body, "search</a>") {
		t.Errorf("%d\n%s", code, body)
	}
	for path, want := range map[string]int{
		"/scope?scope=payments": 403, "/waiters?scope=payments/acme": 403, "/task?id=inv0": 404, "/live?at=" + url.QueryEscape("/scope?scope=payments"): 403,
		"/scope?scope=search": 200,
	} {
		if code, body := s.get(path); code != want {
			t.Errorf("%s: %d, want %d\n%s", path, code, want, body)
		}
	}
	if _, body := s.get("/history"); strings.Contains(body, "account") || !strings.Contains(body, "limit: 7") {
		t.Errorf("the history of a viewer:\n%s", body)
	}
	both, err := limitsyaml.Parse("new.yaml", []byte("limits: {search: {rules: [{name: plan, algorithm: sliding-window, limit: 8, per: 1h}]}, payments: {rules: [{name: account, algorithm: fixed-window, limit: 3, per: 30d}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.store.Import(t.Context(), policystore.Edit{By: "anna"}, both, "payments-and-search.yaml", false); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the history to have the import", 10*time.Second, func() bool {
		_, body := s.get("/history")
		if strings.Contains(body, "payments-and-search") || strings.Contains(body, "account") {
			t.Fatalf("the history of a viewer of search names what is hidden:\n%s", body)
		}
		return strings.Contains(body, "limit: 8") && strings.Contains(body, "changed limits") && strings.Contains(body, "in scopes that you may not see")
	})
	if _, body := s.post("/forecast", url.Values{"batch": {`{"type":"mail","scope":"payments/acme"}`}}); !strings.Contains(body, "vic may not see payments/acme") {
		t.Errorf("the forecast of a viewer:\n%s", body)
	}
	for who, want := range map[*Actor]bool{
		{Name: "vic", Role: RoleViewer}: false, {Name: "olga", Role: RoleOwner}: false,
		{Name: "olga", Groups: []string{"team-acme"}, Role: RoleOwner}: true, {Name: "root", Role: RoleAdmin}: true,
	} {
		s.who = *who
		if _, body := s.get("/task?id=inv0"); strings.Contains(body, "4711") != want {
			t.Errorf("%+v, want the payload %t:\n%s", who, want, body)
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
	_, body, _ := s.do(httptest.NewRequest(http.MethodGet, "/limits/", nil))
	has(t, body, `href="/limits/assets/page.css`, `href="/limits/history"`, `href="/limits/scope?scope=payments"`)
	for _, bad := range []string{"style=", "onclick", "<script>"} {
		if strings.Contains(body, bad) {
			t.Errorf("the page has %q, which its policy forbids", bad)
		}
	}
	r := formTo("/limits/forecast", url.Values{"batch": {"{}"}})
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	if code, _, _ := s.do(r); code != http.StatusForbidden {
		t.Errorf("a form of another site: %d", code)
	}
}

// Who asks is known, or nothing is answered.
func TestWhoAsks(t *testing.T) {
	t.Parallel()
	from := func(addr string, header ...string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Host = addr, "localhost:9091"
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return r
	}
	named := func(r *http.Request, host string) *http.Request { r.Host = host; return r }
	s := newSite(t, func(c *Config) { c.Identify, c.Local = nil, "me" })
	for want, list := range map[int][]*http.Request{
		200: {from("127.0.0.1:1"), from("[::1]:1"), named(from("127.0.0.1:1"), "127.0.0.1:9091"), named(from("127.0.0.1:1"), "[::1]:9091")},
		421: {from("10.0.0.1:1"), named(from("127.0.0.1:1"), "evil.example:9091"), named(from("127.0.0.1:1"), "localhost.evil.example")},
	} {
		for _, r := range list {
			if code, body, _ := s.do(r); code != want {
				t.Errorf("on this machine, %s as %s: %d %s", r.RemoteAddr, r.Host, code, body)
			}
		}
	}
	s = newSite(t, func(c *Config) {
		c.Identify, c.Proxy = nil, &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Admins: []string{"ops"}, Viewers: []string{"vic"}}
	})
	for _, one := range []struct {
		r    *http.Request
		code int
		role string
	}{
		{from("10.1.2.3:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "dev, ops"), 200, ">admin<"},
		{from("10.1.2.3:1", "X-Forwarded-User", "ben", "X-Forwarded-Groups", "dev"), 200, ">owner<"},
		{from("10.1.2.3:1", "X-Forwarded-User", "vic"), 200, ">viewer<"},
		{from("10.1.2.3:1"), 403, ""},
		{from("11.1.2.3:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "ops"), 403, ""},
		{from("127.0.0.1:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "ops"), 403, ""},
	} {
		if code, body, _ := s.do(one.r); code != one.code || !strings.Contains(body, one.role) {
			t.Errorf("%s %v: %d\n%s", one.r.RemoteAddr, one.r.Header, code, body)
		}
	}
	for name, cfg := range map[string]Config{
		"no Redis": {Local: "x"}, "nobody": {Redis: s.rdb}, "two ways": {Redis: s.rdb, Local: "x", Proxy: &Proxy{}}, "a prefix": {Redis: s.rdb, Local: "x", Prefix: "limits"},
		"a proxy of nowhere": {Redis: s.rdb, Proxy: &Proxy{}},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// usersFile writes a file with anna, an admin, and the token of a viewer of search.
func usersFile(t *testing.T) (path, token string) {
	t.Helper()
	hash, err := HashPassword("correct horse")
	if err != nil {
		t.Fatal(err)
	}
	token, sum := NewToken()
	path = filepath.Join(t.TempDir(), "users.yaml")
	text := fmt.Sprintf("people:\n  anna: {password: %q, role: admin}\ntokens:\n  board: {sha256: %q, role: viewer, scopes: [search]}\n", hash, sum)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, token
}

// People log in, a session ends, and what was typed when it had ended is kept.
func TestLogin(t *testing.T) {
	t.Parallel()
	path, token := usersFile(t)
	users, err := LoadUsers(path)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, func(c *Config) { c.Identify, c.Users = nil, users })
	code, _, header := s.do(httptest.NewRequest(http.MethodGet, "/scope?scope=payments", nil))
	if where := header.Get("Location"); code != http.StatusSeeOther || where != "/login?next="+url.QueryEscape("/scope?scope=payments") {
		t.Fatalf("%d to %s", code, where)
	}
	if code, body := s.post("/login", url.Values{"name": {"anna"}, "password": {"wrong"}}); code != http.StatusUnauthorized || !strings.Contains(body, "is wrong") {
		t.Errorf("a wrong password: %d", code)
	}
	code, body := s.post("/forecast", url.Values{"batch": {`{"typed":"<text>"}`}})
	if code != http.StatusUnauthorized {
		t.Fatalf("a form without a session: %d", code)
	}
	has(t, body, `name="held:batch" value="{&#34;typed&#34;:&#34;&lt;text&gt;&#34;}"`, "what you typed is kept")
	log := url.Values{"name": {"anna"}, "password": {"correct horse"}, "next": {"/forecast"}, "posted": {"yes"}, "held:batch": {"typed text"}}
	code, body, header = s.do(formTo("/login", log))
	if code != http.StatusOK {
		t.Fatalf("%d\n%s", code, body)
	}
	has(t, body, `action="/forecast"`, `name="batch" value="typed text"`)
	cookie := header.Get("Set-Cookie")
	has(t, cookie, "HttpOnly", "SameSite=Lax")
	with := func(r *http.Request) *http.Request {
		r.Header.Set("Cookie", strings.Split(cookie, ";")[0])
		return r
	}
	if code, body, _ := s.do(with(httptest.NewRequest(http.MethodGet, "/", nil))); code != http.StatusOK || !strings.Contains(body, "Log out") {
		t.Errorf("with a session: %d", code)
	}
	if code, _, _ := s.do(with(formTo("/logout", nil))); code != http.StatusSeeOther {
		t.Errorf("log out: %d", code)
	}
	if code, _, _ := s.do(with(httptest.NewRequest(http.MethodGet, "/", nil))); code != http.StatusSeeOther {
		t.Errorf("after the session: %d", code)
	}
	for text, want := range map[string]int{token: http.StatusOK, token + "x": http.StatusUnauthorized} {
		r := httptest.NewRequest(http.MethodGet, "/scope?scope=search", nil)
		r.Header.Set("Authorization", "Bearer "+text)
		if code, _, _ := s.do(r); code != want {
			t.Errorf("a token: %d, want %d", code, want)
		}
	}
	for range triesAMinute + 1 {
		code, _ = s.post("/login", url.Values{"name": {"nobody"}, "password": {""}})
	}
	if code != http.StatusTooManyRequests {
		t.Errorf("many tries: %d", code)
	}
	for next, want := range map[string]string{"//evil.example/": "/", "https://evil.example": "/", `/\evil.example`: "/", "/history?q=a": "/history?q=a"} {
		if got := safePath(next); got != want {
			t.Errorf("after %q a login goes to %q", next, got)
		}
	}
}

// A file of users is refused with every fault and its line.
func TestUsersFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"people: {anna: {password: x, role: king}}":                  `people.anna.role: role is "king"; write viewer, owner or admin`,
		"people: {anna: {role: admin}}":                              "password is missing",
		"tokens: {ci: {sha256: 12, role: viewer}}":                   "is no SHA-256 in hex",
		"people: {anna: {password: x, role: admin, scopes: [a//b]}}": `"a//b", which is no scope`,
		"nobody: {}": "nobody is not a field of the file; write people or tokens",
		"people: {}": "nobody could get in",
		"":           "write people:",
	} {
		path := filepath.Join(t.TempDir(), "users.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadUsers(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := LoadUsers("none.yaml"); err == nil {
		t.Error("a file that is not there is accepted")
	}
	for _, password := range []string{"short", strings.Repeat("x", 73)} {
		if _, err := HashPassword(password); err == nil {
			t.Errorf("%q is accepted", password)
		}
	}
}

// "A Redis that goes away shows the last state with its age, and comes back by itself."
func TestRedisGone(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if code, _ := s.get("/"); code != http.StatusOK {
		t.Fatal(code)
	}
	s.server.Stop(t)
	redistest.WaitFor(t, "the page to notice", 20*time.Second, func() bool {
		code, body := s.get("/")
		return code == http.StatusOK && strings.Contains(body, "Redis does not answer") && strings.Contains(body, ">search</a>")
	})
	if code, body := s.get("/scope?scope=search"); code != http.StatusServiceUnavailable || !strings.Contains(body, "Redis does not answer") {
		t.Errorf("a screen that was not read before: %d\n%s", code, body)
	}
	s.server.Restart(t)
	redistest.WaitFor(t, "the page to come back", 20*time.Second, func() bool {
		code, body := s.get("/")
		return code == http.StatusOK && !strings.Contains(body, "Redis does not answer")
	})
}

// A stream lasts, whatever time-outs the server around the page has for other requests.
func TestLiveLasts(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	server := httptest.NewUnstartedServer(s.handler)
	server.Config.ReadTimeout, server.Config.WriteTimeout = 300*time.Millisecond, 300*time.Millisecond
	server.Start()
	defer server.Close()
	answer, err := http.Get(server.URL + "/live?at=/") //nolint:noctx // the server ends it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	if kind := answer.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatal(kind)
	}
	lines, at := bufio.NewScanner(answer.Body), 0
	for at < 3 && lines.Scan() {
		if lines.Text() == "event: at" {
			at++
		}
	}
	if at < 3 {
		t.Errorf("the stream ended after %d snapshots: %v", at, lines.Err())
	}
}

// "≤ 50 Redis commands a snapshot", whatever the number of scopes and tasks.
func TestSnapshotCost(t *testing.T) {
	t.Parallel()
	s := newSiteUnder(t, anyProvider, nil)
	s.use("payments")
	for n := range 1200 {
		task := queue.Task{Type: "mail", ID: "one", Scope: fmt.Sprintf("payments/t%d", n), Queue: "q"}
		task.ID = fmt.Sprint("x", n)
		if _, err := s.queue.Enqueue(t.Context(), task); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 40 {
		s.enqueue(fmt.Sprint("provider", n), fmt.Sprint("p", n, "-"), 2)
	}
	h := pageOfSite(t, s)
	for _, path := range []string{"/", "/scope?scope=payments", "/scope?scope=payments/t1", "/waiters?scope=payments/t1", "/task?id=x7", "/workers", "/history"} {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		screen, _ := h.screenOf(r.URL.Path)
		topic, err := screen.topic(r, s.who)
		if err != nil {
			t.Fatal(err)
		}
		last, err := topic.load(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		for range slowParts + 1 {
			h.following.read = h.following.read.Add(-snapshotEvery)
			if scope, is := last.(*scopeState); is {
				old := *scope
				old.slow = [slowParts]slowPart{}
				last = &old
			}
			n := redistest.Total(redistest.Commands(t, s.rdb, func() {
				if last, err = topic.load(context.WithoutCancel(t.Context()), last); err != nil {
					t.Error(err)
				}
			}))
			if most := topic.cost(last); n > snapshotCommands || n > max(most, quickCost+slowCost[slowUsers]) {
				t.Errorf("%s sent %d commands, and says %d", path, n, most)
			}
		}
	}
}

// A page of waiters is read by few commands, also at first, and all of its rows are known after two snapshots.
func TestWaitersCost(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	s.enqueue("payments/acme", "inv", 60)
	if err := s.rdb.Del(t.Context(), "asynq:{default}:t:inv3").Err(); err != nil {
		t.Fatal(err)
	}
	sent := &sentCommands{}
	rdb := redis.NewClient(s.rdb.Options())
	defer func() { _ = rdb.Close() }()
	rdb.AddHook(sent)
	h, err := newHandler(Config{Redis: rdb, Local: "me"})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/waiters?scope=payments/acme", nil)
	if _, err := h.limits(t.Context()); err != nil {
		t.Fatal(err)
	}
	topic, err := h.waitersTopic(r, s.who)
	if err != nil {
		t.Fatal(err)
	}
	var last any
	for n := range 3 {
		h.following.read = time.Time{}
		most := topic.cost(last)
		sent.n.Store(0)
		if last, err = topic.load(t.Context(), last); err != nil {
			t.Fatal(err)
		}
		if got := int(sent.n.Load()); got > snapshotCommands || got > most {
			t.Errorf("snapshot %d sent %d commands, and says %d", n, got, most)
		}
	}
	data, _, err := h.waitersView(r, s.who, last)
	if err != nil {
		t.Fatal(err)
	}
	rows := data.(waitersData).Rows
	for i, row := range rows {
		if !row.Known || row.Gone != (row.ID == "inv3") || !row.Gone && (row.Type != "mail" || row.EnqueuedBy != "billing" || row.Since.IsZero()) || row.Position != int64(i+1) {
			t.Errorf("row %d: %+v", i, row)
		}
	}
	if len(rows) != rowsAPage {
		t.Errorf("%d rows", len(rows))
	}
}

// sentCommands counts what a client sends: a script is one command.
type sentCommands struct{ n atomic.Int64 }

func (s *sentCommands) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *sentCommands) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.n.Add(1)
		return next(ctx, cmd)
	}
}

func (s *sentCommands) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// "Bound it": the workers screen sends at most 50 commands a snapshot with 100 servers and 30 queues, says how many there are, and has read
// all of them after some snapshots.
func TestManyServers(t *testing.T) {
	t.Parallel()
	const many, queues = 100, 30
	s := newSite(t, nil)
	now := time.Now()
	for n := range many {
		key, served := fmt.Sprintf("asynq:servers:{host%d:%d:x}", n, n), map[string]int{fmt.Sprint("q", n%queues): 1 + n}
		if err := s.rdb.Set(t.Context(), key, serverInfo(fmt.Sprint("host", n), n, now.Add(-time.Duration(n)*time.Minute), served), time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
		if err := s.rdb.ZAdd(t.Context(), "asynq:servers", redis.Z{Score: float64(now.Add(time.Hour).Unix()), Member: key}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for n := range queues {
		if _, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", Scope: "payments", Queue: fmt.Sprint("q", n)}); err != nil {
			t.Fatal(err)
		}
	}
	h := pageOfSite(t, s)
	clock := now
	h.now = func() time.Time { return clock }
	r := httptest.NewRequest(http.MethodGet, "/workers", nil)
	topic, err := h.workersTopic(r, s.who)
	if err != nil {
		t.Fatal(err)
	}
	var last any
	rounds := 0
	for ; rounds < 60; rounds++ {
		most := topic.cost(last)
		n := redistest.Total(redistest.Commands(t, s.rdb, func() {
			if last, err = topic.load(t.Context(), last); err != nil {
				t.Fatal(err)
			}
		}))
		if n > snapshotCommands || n > most {
			t.Errorf("snapshot %d sent %d commands, and says %d", rounds, n, most)
		}
		clock = clock.Add(snapshotEvery)
		st := last.(*workersState)
		read := 0
		for _, q := range st.queues {
			if q.Known {
				read++
			}
		}
		if st.all != many {
			t.Fatalf("%d servers", st.all)
		}
		if len(st.servers) == many && read == queues {
			break
		}
	}
	if rounds > 12 {
		t.Errorf("not all were read after %d snapshots", rounds)
	}
	data, _, err := h.workersView(r, s.who, last)
	if err != nil {
		t.Fatal(err)
	}
	d := data.(workersData)
	if d.All != many || len(d.Servers) != rowsAPage || d.Pages.Last != 2 || d.Servers[0].Host != "host99" || d.Servers[0].Queues["q9"] != 100 {
		t.Errorf("%d servers, %d of them on the first of %d pages, the oldest %+v", d.All, len(d.Servers), d.Pages.Last, d.Servers[0])
	}
	for _, q := range d.Queues {
		if q.Served != (q.Name != "default") || q.Unserved != (q.Name == "default") {
			t.Errorf("%+v", q)
		}
	}
	_, body := s.get("/workers")
	has(t, body, "asynq servers: 100, of which 20 were read so far")
}

// serverInfo is what a server of asynq writes of itself.
func serverInfo(host string, pid int, started time.Time, queues map[string]int) []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), host)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(pid))
	b = protowire.AppendVarint(protowire.AppendTag(b, 4, protowire.VarintType), 10)
	for name, weight := range queues {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), name)
		entry = protowire.AppendVarint(protowire.AppendTag(entry, 2, protowire.VarintType), uint64(weight))
		b = protowire.AppendBytes(protowire.AppendTag(b, 5, protowire.BytesType), entry)
	}
	b = protowire.AppendString(protowire.AppendTag(b, 7, protowire.BytesType), "active")
	at := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(started.Unix()))
	return protowire.AppendBytes(protowire.AppendTag(b, 8, protowire.BytesType), at)
}

// pageOfSite is a page over the same Redis whose inside can be looked at.
func pageOfSite(t *testing.T, s *site) *handler {
	t.Helper()
	h, err := newHandler(Config{Redis: s.rdb, Local: "me"})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// An id is searched for in all queues at first, and then read where it was found; a link that names the queue needs no search.
func TestTaskOfManyQueues(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.use("payments")
	for n := range 40 {
		if _, err := s.queue.Enqueue(t.Context(), queue.Task{Type: "mail", ID: fmt.Sprint("t", n), Scope: "payments/acme", Queue: fmt.Sprint("q", n)}); err != nil {
			t.Fatal(err)
		}
	}
	h := pageOfSite(t, s)
	for path, first := range map[string]int{"/task?id=t7": 200, "/task?id=t7&queue=q7": snapshotCommands} {
		topic, err := h.taskTopic(httptest.NewRequest(http.MethodGet, path, nil), s.who)
		if err != nil {
			t.Fatal(err)
		}
		var last any
		for range 3 {
			h.following.read = h.following.read.Add(-snapshotEvery)
			n := redistest.Total(redistest.Commands(t, s.rdb, func() {
				if last, err = topic.load(context.WithoutCancel(t.Context()), last); err != nil {
					t.Error(err)
				}
			}))
			if read := last.(*taskState); n > first || len(read.tasks) != 1 || read.tasks[0].Queue != "q7" {
				t.Errorf("%s: %d commands, at most %d, read %+v", path, n, first, read.tasks)
			}
			first = snapshotCommands
		}
	}
	if code, body := s.get("/task?id=t7&queue=none"); code != http.StatusNotFound {
		t.Errorf("in a queue that has it not: %d\n%s", code, body)
	}
}
