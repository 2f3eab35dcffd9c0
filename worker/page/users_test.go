package page

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue/schedule"
)

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
	twice := func(header string) *http.Request {
		r := from("10.1.2.3:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "dev")
		r.Header.Add(header, "ops")
		return r
	}
	s := newSite(t, func(c *Config) { c.Identify, c.Local = nil, "me" })
	for want, list := range map[int][]*http.Request{
		200: {from("127.0.0.1:1"), from("[::1]:1"), named(from("127.0.0.1:1"), "127.0.0.1:9091"), named(from("127.0.0.1:1"), "[::1]:9091")},
		403: {
			from("127.0.0.1:1", "X-Forwarded-For", "10.0.0.1"), from("127.0.0.1:1", "X-Forwarded-Host", "limits.example.com"), from("127.0.0.1:1", "X-Forwarded-Proto", "https"),
			from("127.0.0.1:1", "Forwarded", "for=10.0.0.1"), from("127.0.0.1:1", "X-Real-IP", "10.0.0.1"), from("127.0.0.1:1", "Via", "1.1 proxy"),
		},
		421: {from("10.0.0.1:1"), named(from("127.0.0.1:1"), "evil.example:9091"), named(from("127.0.0.1:1"), "localhost.evil.example")},
	} {
		for _, r := range list {
			if code, body, _ := s.do(r); code != want {
				t.Errorf("on this machine, %s as %s: %d %s", r.RemoteAddr, r.Host, code, body)
			}
		}
	}
	s = newSite(t, func(c *Config) {
		c.Identify, c.Proxy = nil, &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Admins: []string{"ops"}, Viewers: []string{"user:vic"}}
	})
	for _, one := range []struct {
		r    *http.Request
		code int
		role string
	}{
		{from("10.1.2.3:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "dev, ops"), 200, ">admin<"},
		{from("10.1.2.3:1", "X-Forwarded-User", "ben", "X-Forwarded-Groups", "dev"), 200, ">owner<"},
		{from("10.1.2.3:1", "X-Forwarded-User", "vic"), 200, ">viewer<"},
		{from("10.1.2.3:1", "X-Forwarded-User", "ops"), 200, ">owner<"}, // a person named like a group
		{from("10.1.2.3:1", "X-Forwarded-User", "eve", "X-Forwarded-Groups", "user:vic"), 200, ">owner<"},
		{twice("X-Forwarded-User"), 403, ""},
		{twice("X-Forwarded-Groups"), 403, ""},
		{named(from("10.1.2.3:1", "X-Forwarded-User", "anna"), "10.1.2.3:9091"), 200, ">owner<"},
		{named(from("10.1.2.3:1", "X-Forwarded-User", "anna"), "evil.example"), 421, ""},
		{from("10.1.2.3:1"), 403, ""},
		{from("11.1.2.3:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "ops"), 403, ""},
		{from("127.0.0.1:1", "X-Forwarded-User", "anna", "X-Forwarded-Groups", "ops"), 403, ""},
	} {
		if code, body, _ := s.do(one.r); code != one.code || !strings.Contains(body, one.role) {
			t.Errorf("%s %v: %d\n%s", one.r.RemoteAddr, one.r.Header, code, body)
		}
	}
	s = newSite(t, func(c *Config) {
		c.Identify, c.Proxy = nil, &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Hosts: []string{"limits.example.com"}}
	})
	for host, want := range map[string]int{"limits.example.com": 200, "LIMITS.example.com.:443": 200, "localhost": 421, "10.1.2.3": 421, "example.com": 421, "": 421} {
		if code, body, _ := s.do(named(from("10.1.2.3:1", "X-Forwarded-User", "anna"), host)); code != want {
			t.Errorf("as %q through the proxy: %d %s", host, code, body)
		}
	}
	proxyAs := func(host string) *Proxy {
		return &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Hosts: []string{host}}
	}
	for name, cfg := range map[string]Config{
		"no Redis": {Local: "x"}, "nobody": {Redis: s.rdb}, "two ways": {Redis: s.rdb, Local: "x", Proxy: &Proxy{}}, "a prefix": {Redis: s.rdb, Local: "x", Prefix: "limits"},
		"a proxy of nowhere": {Redis: s.rdb, Proxy: &Proxy{}}, "a host with a port": {Redis: s.rdb, Proxy: proxyAs("limits.example.com:443")},
		"a URL for a host": {Redis: s.rdb, Proxy: proxyAs("https://limits.example.com")}, "a pattern": {Redis: s.rdb, Proxy: proxyAs("*.example.com")},
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
	must(t, err)
	token, sum := NewToken()
	path = filepath.Join(t.TempDir(), "users.yaml")
	text := fmt.Sprintf("people:\n  anna: {password: %q, role: admin}\ntokens:\n  board: {sha256: %q, role: viewer, scopes: [search]}\n", hash, sum)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path, token
}

// People log in, a session ends, and what was typed when it had ended is kept.
func TestLogin(t *testing.T) {
	t.Parallel()
	path, token := usersFile(t)
	users, err := LoadUsers(path)
	must(t, err)
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
		must(t, os.WriteFile(path, []byte(text), 0o600))
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

// docs/page.md: "With a file of users and no proxy, `owner: anna` is the person too, as long as nobody of the file is in a group `anna`".
func TestOwnGroup(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users.yaml")
	anna, team, board := sumOf("anna's"), sumOf("team's"), sumOf("board's")
	must(t, os.WriteFile(path, fmt.Appendf(nil, `tokens:
  team-acme: {sha256: %s, role: owner}
  team-pay: {sha256: %s, role: owner}
  board: {sha256: %s, role: viewer, groups: [team-pay]}
`, anna, team, board), 0o600))
	users, err := LoadUsers(path)
	must(t, err)
	for _, c := range []struct {
		token, scope string
		proxy        *Proxy
		want         int
	}{
		{"anna's", "payments/acme", nil, http.StatusOK}, // its owner is team-acme, which is no group in the file
		{"team's", "payments", nil, http.StatusForbidden},
		{"anna's", "payments/acme", &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, http.StatusForbidden},
	} {
		s := newSite(t, func(cfg *Config) { cfg.Identify, cfg.Users, cfg.Proxy = nil, users, c.proxy })
		r := httptest.NewRequest(http.MethodGet, "http://localhost/change?verb=pause&scope="+c.scope, nil)
		r.Header.Set("Authorization", "Bearer "+c.token)
		if code, body, _ := s.do(r); code != c.want {
			t.Errorf("%s at %s: %d, want %d\n%s", c.token, c.scope, code, c.want, body)
		}
	}
}

func sumOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// "A session ends after two hours without use, after twelve hours": each by itself, and at a logout.
func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	request := func(id string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: id})
		return r
	}
	s := newSessions()
	id := s.begin("anna", []byte("x"), now)
	if one := s.of(request(id), now.Add(sessionIdle)); one == nil || one.name != "anna" {
		t.Errorf("two hours without use: %+v", one)
	}
	if one := s.of(request(id), now.Add(2*sessionIdle+time.Second)); one != nil {
		t.Error("it lasts for more than two hours without use")
	}
	id = s.begin("anna", []byte("x"), now)
	for since := time.Hour; since <= sessionLongest; since += time.Hour {
		if s.use(request(id), now.Add(since)); s.of(request(id), now.Add(since)) == nil {
			t.Errorf("it has ended after %s of use", since)
		}
	}
	if s.of(request(id), now.Add(sessionLongest+time.Second)) != nil {
		t.Error("it lasts for more than twelve hours")
	}
	id = s.begin("anna", []byte("x"), now)
	s.end(request(id))
	if s.of(request(id), now) != nil || s.of(request("another"), now) != nil || s.of(httptest.NewRequest(http.MethodGet, "/", nil), now) != nil {
		t.Error("a session after its end, or of no request that has begun one")
	}
	for i := range mostSessions + 5 {
		s.begin("anna", nil, now.Add(time.Duration(i)*time.Millisecond))
	}
	if len(s.byID) != mostSessions {
		t.Errorf("%d sessions are kept", len(s.byID))
	}
}

// "When the person leaves the file or gets another password" a session ends, and a stream with it.
func TestSessionsEndWithTheFile(t *testing.T) {
	t.Parallel()
	path, _ := usersFile(t)
	users, err := LoadUsers(path)
	must(t, err)
	s := newSite(t, func(c *Config) { c.Identify, c.Users = nil, users })
	h, err := newHandler(Config{Redis: s.rdb, Users: users})
	must(t, err)
	h.heartbeat = 20 * time.Millisecond
	s.handler = h.mux
	write := func(name, password string) {
		t.Helper()
		hash, err := HashPassword(password)
		must(t, err)
		must(t, os.WriteFile(path, fmt.Appendf(nil, "people: {%s: {password: %q, role: admin}}\n", name, hash), 0o600))
		users.mu.Lock()
		users.checked, users.stamp = time.Time{}, ""
		users.mu.Unlock()
	}
	login := func(password string) *http.Cookie {
		t.Helper()
		code, body, header := s.do(formTo("/login", url.Values{"name": {"anna"}, "password": {password}, "next": {"/"}}))
		if code != http.StatusSeeOther {
			t.Fatalf("%d\n%s", code, body)
		}
		cookie, err := http.ParseSetCookie(header.Get("Set-Cookie"))
		must(t, err)
		return cookie
	}
	asks := func(cookie *http.Cookie) int {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(cookie)
		code, _, _ := s.do(r)
		return code
	}
	first := login("correct horse")
	if code := asks(first); code != http.StatusOK {
		t.Fatal(code)
	}
	front := httptest.NewServer(h.mux)
	defer front.Close()
	stream := liveOf(t, front.URL, "/", *first)
	write("anna", "battery staple")
	if code := asks(first); code != http.StatusSeeOther {
		t.Errorf("with another password: %d", code)
	}
	if last := lastEvent(stream); last != "bye" {
		t.Errorf("the stream ends with %q", last)
	}
	second := login("battery staple")
	write("ben", "battery staple")
	if code := asks(second); code != http.StatusSeeOther {
		t.Errorf("of a person who left the file: %d", code)
	}
}

// "The session's cookie is marked Secure if the request came by HTTPS."
func TestCookieIsSecure(t *testing.T) {
	t.Parallel()
	plain, direct, behind := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRequest(http.MethodGet, "/", nil)
	direct.TLS = &tls.ConnectionState{}
	behind.Header.Set("X-Forwarded-Proto", "https")
	for r, want := range map[*http.Request]bool{plain: false, direct: true, behind: true} {
		if c := cookie(r, "/limits", "id"); c.Secure != want || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/limits/" {
			t.Errorf("%+v, want secure %t", c, want)
		}
	}
	if c := cookie(plain, "", ""); c.MaxAge >= 0 {
		t.Errorf("%+v is not deleted", c)
	}
}

// A form that is larger than two megabytes is refused, and changes nothing.
func TestLargeForm(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if code, _ := s.make(form("verb", "pause", "scope", "payments", "padding", strings.Repeat("x", mostForm+1))); code < 400 || s.version() != 1 {
		t.Errorf("%d, version %d", code, s.version())
	}
}

// The runs of a schedule are shown to those who may see its scope.
func TestSchedulesAreSeen(t *testing.T) {
	t.Parallel()
	file, err := schedule.Parse("schedules.yaml", []byte("schedules:\n  nightly: {cron: \"0 3 * * *\", task: {type: mail, scope: payments/acme}}\n"))
	must(t, err)
	s := newSite(t, func(c *Config) { c.Schedules = file.Schedules })
	_, body := s.get("/workers")
	has(t, body, "nightly", "0 3 * * *", "payments/acme")
	s.who = Actor{Name: "vic", Role: RoleViewer, Scopes: []string{"search"}}
	if _, body = s.get("/workers"); strings.Contains(body, "nightly") {
		t.Errorf("a viewer of search is shown a schedule of payments:\n%s", body)
	}
}
