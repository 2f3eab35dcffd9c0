package page

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// Only a known actor gets an answer.
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
			s.says(want, r)
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
		s.says(one.code, one.r, one.role)
	}
	proxyAs := func(host string) *Proxy {
		return &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Hosts: []string{host}}
	}
	s = newSite(t, func(c *Config) { c.Identify, c.Proxy = nil, proxyAs("limits.example.com") })
	for host, want := range map[string]int{"limits.example.com": 200, "LIMITS.example.com.:443": 200, "localhost": 421, "10.1.2.3": 421, "example.com": 421, "": 421} {
		s.says(want, named(from("10.1.2.3:1", "X-Forwarded-User", "anna"), host))
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

// newSiteOfUsers is a site of users: anna, an admin with the password "correct horse", and a viewer of search with a token.
func newSiteOfUsers(t *testing.T) (s *site, h *handler, token string) {
	t.Helper()
	hash, err := HashPassword("correct horse")
	must(t, err)
	token, sum := NewToken()
	users, err := usersOf(t, fmt.Sprintf("people: {anna: {password: %q, role: admin}}\ntokens: {board: {sha256: %q, role: viewer, scopes: [search]}}\n", hash, sum))
	must(t, err)
	s = newSite(t, func(c *Config) { c.Identify, c.Users = nil, users })
	h, err = newHandler(Config{Redis: s.rdb, Users: users})
	must(t, err)
	h.heartbeat = 20 * time.Millisecond
	return s, h, token
}

// usersOf loads the users of a file with a text.
func usersOf(t *testing.T, text string) (*Users, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return LoadUsers(path)
}

// login returns the cookie of a session.
func (s *site) login(name, password string) *http.Cookie {
	s.t.Helper()
	code, body, header := s.do(formTo("/login", form("name", name, "password", password, "next", "/")))
	if code != http.StatusSeeOther {
		s.t.Fatalf("%d\n%s", code, body)
	}
	cookie, err := http.ParseSetCookie(header.Get("Set-Cookie"))
	must(s.t, err)
	return cookie
}

// People log in, and a session ends.
func TestLogin(t *testing.T) {
	t.Parallel()
	s, _, token := newSiteOfUsers(t)
	code, _, header := s.do(httptest.NewRequest(http.MethodGet, "/scope?scope=payments", nil))
	if where := header.Get("Location"); code != http.StatusSeeOther || where != "/login?next="+url.QueryEscape("/scope?scope=payments") {
		t.Fatalf("%d to %s", code, where)
	}
	s.sends(http.StatusUnauthorized, "/login", form("name", "anna", "password", "wrong"), "is wrong")
	s.sends(http.StatusUnauthorized, "/forecast", form("batch", "typed text"), "Your session has ended, and nothing was done")
	code, _, header = s.do(formTo("/login", form("name", "anna", "password", "correct horse", "next", "/forecast")))
	if code != http.StatusSeeOther || header.Get("Location") != "/forecast" {
		t.Fatalf("%d, %v", code, header)
	}
	cookie := header.Get("Set-Cookie")
	has(t, cookie, "HttpOnly", "SameSite=Lax")
	with := func(r *http.Request) *http.Request {
		r.Header.Set("Cookie", strings.Split(cookie, ";")[0])
		return r
	}
	s.says(http.StatusOK, with(httptest.NewRequest(http.MethodGet, "/", nil)), "Log out")
	s.says(http.StatusSeeOther, with(formTo("/logout", nil)))
	s.says(http.StatusSeeOther, with(httptest.NewRequest(http.MethodGet, "/", nil)))
	for text, want := range map[string]int{token: http.StatusOK, token + "x": http.StatusUnauthorized} {
		r := httptest.NewRequest(http.MethodGet, "/scope?scope=search", nil)
		r.Header.Set("Authorization", "Bearer "+text)
		s.says(want, r)
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
		"people: {}": "so no login would work",
		"":           "write people:",
	} {
		if _, err := usersOf(t, text); err == nil || !strings.Contains(err.Error(), want) {
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
	sum := func(token string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(token))) }
	users, err := usersOf(t, fmt.Sprintf(`tokens:
  team-acme: {sha256: %s, role: owner}
  team-pay: {sha256: %s, role: owner}
  board: {sha256: %s, role: viewer, groups: [team-pay]}
`, sum("anna's"), sum("team's"), sum("board's")))
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
		s.says(c.want, r)
	}
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
	s := &sessions{byID: map[[sha256.Size]byte]session{}}
	id := s.begin("anna", []byte("x"), now)
	lasts := func(r *http.Request, since time.Duration, want bool) {
		t.Helper()
		if one, is := s.of(r, now.Add(since)); is != want || is && one.name != "anna" {
			t.Errorf("after %s: %+v, %t, want %t", since, one, is, want)
		}
	}
	lasts(request(id), sessionIdle, true)
	lasts(request(id), sessionIdle+time.Second, false)
	for since := time.Hour; since <= sessionLongest; since += time.Hour {
		s.use(request(id), now.Add(since))
		lasts(request(id), since, true)
	}
	lasts(request(id), sessionLongest+time.Second, false)
	id = s.begin("anna", []byte("x"), now)
	s.end(request(id))
	lasts(request(id), 0, false)
	lasts(request("another"), 0, false)
	lasts(httptest.NewRequest(http.MethodGet, "/", nil), 0, false)
	if s.begin("anna", nil, now.Add(sessionLongest+4*sessionIdle)); len(s.byID) != 1 {
		t.Errorf("%d sessions are kept, and all but one have ended", len(s.byID))
	}
}

// "When the person leaves the file or gets another password" a session ends, and a stream with it.
func TestSessionsEndWithTheFile(t *testing.T) {
	t.Parallel()
	s, h, _ := newSiteOfUsers(t)
	users := h.cfg.Users
	s.handler = h.mux
	log, lines := io.Pipe()
	go users.follow(t.Context(), slog.New(slog.NewTextHandler(lines, nil)))
	write := func(name, password string) {
		t.Helper()
		hash, err := HashPassword(password)
		must(t, err)
		must(t, os.WriteFile(users.path, fmt.Appendf(nil, "people: {%s: {password: %q, role: admin}}\n", name, hash), 0o600))
		redistest.WaitFor(t, "the file is read", time.Minute, func() bool { return string(users.current().people[name].hash) == hash })
	}
	gets := func(code int, cookie *http.Cookie) {
		t.Helper()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(cookie)
		s.says(code, r)
	}
	first := s.login("anna", "correct horse")
	gets(http.StatusOK, first)
	stream := liveOf(t, s, "/", *first)
	write("anna", "battery staple")
	gets(http.StatusSeeOther, first)
	stream.endsWith(t, "bye")
	second := s.login("anna", "battery staple")
	gets(http.StatusOK, second)
	write("ben", "battery staple")
	gets(http.StatusSeeOther, second)

	third := s.login("ben", "battery staple")
	must(t, os.WriteFile(users.path, []byte("people: {ben: {}}"), 0o600))
	line, err := bufio.NewReader(log).ReadString('\n')
	must(t, err)
	has(t, line, "role is missing", "the users from before still count")
	gets(http.StatusOK, third)
}

// "The session's cookie is marked Secure if the request came by HTTPS."
func TestCookieIsSecure(t *testing.T) {
	t.Parallel()
	behind := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
	behind.Header.Set("X-Forwarded-Proto", "https")
	plain, direct := httptest.NewRequest(http.MethodGet, "http://localhost/", nil), httptest.NewRequest(http.MethodGet, "https://localhost/", nil)
	for r, want := range map[*http.Request]bool{plain: false, direct: true, behind: true} {
		if c := cookie(r, "/limits", "id"); c.Secure != want || !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/limits/" {
			t.Errorf("%+v, want secure %t", c, want)
		}
	}
	if c := cookie(plain, "", ""); c.MaxAge >= 0 {
		t.Errorf("%+v is not deleted", c)
	}
}

// Tries are counted by name, by address and by browser, and each comes back after its part of a minute.
func TestGuesses(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	g := newGuesses()
	for _, step := range []struct {
		what                string
		later               time.Duration
		tries               int
		name, from, browser string // "#" is the number of the try
		want                int
	}{
		{"at one name from one address", 0, 50, "anna", "here", "", triesAtOne},
		{"at another name from there", 0, 1, "ben", "here", "", 1},
		{"at that name from elsewhere", 0, 1, "anna", "there", "", 1},
		{"at one name from everywhere", 0, 300, "anna", "at#", "", triesAtAll - triesAtOne - 1},
		{"from one address at many names", 0, 300, "name#", "here", "", triesAtAll - triesAtOne - 1},
		{"at a full name", 0, 1, "anna", "home", "", 0},
		{"from a full address", 0, 1, "carl", "here", "", 0},
		{"in a browser that has logged in before", 0, 2 * triesAtOne, "anna", "here", "hers", triesAtOne},
		{"in all browsers of a person", 0, 3 * triesAtAll, "anna", "here", "another#", triesAtAll - triesAtOne},
		{"from elsewhere, a moment later", time.Minute / triesAtAll, 1, "carl", "home", "", 1},
		{"one that has come back to the address", 0, 5, "dora#", "here", "", 1},
		{"more than the memory has room for", 2 * time.Minute, mostKeys, "#", "#", "", mostKeys / 3},
		{"when all of that is over", 2 * time.Minute, 1, "anna", "here", "", 1},
	} {
		now = now.Add(step.later)
		made := 0
		for i := range step.tries {
			each := strings.NewReplacer("#", fmt.Sprint(i))
			if leave, ok := g.enter(each.Replace(step.name), each.Replace(step.from), each.Replace(step.browser), now); ok {
				leave()
				made++
			}
		}
		if made != step.want || len(g.full) > mostKeys {
			t.Errorf("%s: %d tries are made, want %d; %d keys", step.what, made, step.want, len(g.full))
		}
	}
	for range mostWaiting {
		g.waiting <- struct{}{}
	}
	if _, ok := g.enter("fay", "afar", "", now); ok {
		t.Error("a try waits beside too many")
	}
	if _, ok := g.enter("anna", "here", "hers", now); !ok {
		t.Error("a try in a browser that has logged in before waits for others")
	}
}

// A login gives back no tries at other names. In a browser that has logged in before, a person is not locked out by guesses.
func TestGuessesAtTheLogin(t *testing.T) {
	t.Parallel()
	s, h, _ := newSiteOfUsers(t)
	login := func(name, password string, cookies []*http.Cookie) (int, http.Header) {
		r := formTo("/login", form("name", name, "password", password, "next", "/"))
		for _, one := range cookies {
			r.AddCookie(one)
		}
		code, _, header := s.do(r)
		return code, header
	}
	code, header := login("anna", "correct horse", nil)
	cookies := (&http.Response{Header: header}).Cookies()
	if code != http.StatusSeeOther || len(cookies) != 2 || cookies[1].Name != browserCookie || !cookies[1].HttpOnly || cookies[1].Path != "/login" {
		t.Fatalf("%d, %v", code, cookies)
	}
	refused := 0
	for range 2 * triesAtOne {
		if code, _ := login("ben", "guess", nil); code == http.StatusTooManyRequests {
			refused++
		}
		_, _ = login("anna", "correct horse", cookies[1:]) // a success between two guesses
	}
	if refused < triesAtOne-1 {
		t.Errorf("%d of %d guesses are refused", refused, 2*triesAtOne)
	}
	for range 2 * triesAtOne {
		_, _ = login("anna", "guess", nil)
	}
	if code, _ = login("anna", "correct horse", nil); code != http.StatusTooManyRequests {
		t.Errorf("after many guesses from one address: %d", code)
	}
	forged := *cookies[1]
	forged.Value = "x" + forged.Value
	if code, _ = login("anna", "correct horse", []*http.Cookie{&forged}); code != http.StatusTooManyRequests {
		t.Errorf("with a forged browser: %d", code)
	}
	second, err := New(Config{Redis: s.rdb, Users: h.cfg.Users}) // with tries of its own: those of her browser are used up above
	must(t, err)
	for range 2 * triesAtOne {
		s.handler = second
		_, _ = login("anna", "guess", nil)
	}
	if code, header = login("anna", "correct horse", cookies[1:]); code != http.StatusSeeOther || len(header.Values("Set-Cookie")) != 1 {
		t.Errorf("in a browser in which she has logged in before: %d", code)
	}
}

// Tries count by address: behind a proxy the one that it names, and for IPv6 the network.
func TestSenders(t *testing.T) {
	t.Parallel()
	h := &handler{cfg: Config{Proxy: &Proxy{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}}
	for _, one := range []struct{ at, of, want string }{
		{"10.0.0.1:5", "1.1.1.1, 2.2.2.2", "2.2.2.2"}, {"10.0.0.1:5", "", "10.0.0.1"}, {"10.0.0.1:5", "x", "10.0.0.1"}, {"9.9.9.9:5", "2.2.2.2", "9.9.9.9"},
		{"[2001:db8:1:2:3:4:5:6]:5", "", "2001:db8:1:2::/64"}, {"[::ffff:9.9.9.9]:5", "", "9.9.9.9"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/login", nil)
		r.RemoteAddr = one.at
		if one.of != "" {
			r.Header.Set("X-Forwarded-For", one.of)
		}
		if got := h.sender(r); got != one.want {
			t.Errorf("%s for %q is %s, want %s", one.at, one.of, got, one.want)
		}
	}
}

// The page refuses a large form of an unknown sender before it has read all of it, and does not echo it.
func TestLargeLogin(t *testing.T) {
	t.Parallel()
	s, _, _ := newSiteOfUsers(t)
	for at, want := range map[string]int{"/login": http.StatusRequestEntityTooLarge, "/forecast": http.StatusUnauthorized, "/change?verb=pause": http.StatusUnauthorized} {
		for _, multi := range []bool{false, true} {
			r := requestOf(http.MethodPost, at, form("name", "anna", "password", "correct horse", "x", strings.Repeat("zz", 2<<20)), multi)
			if code, body, _ := s.do(r); code != want || len(body) > 5000 || strings.Contains(body, "zz") {
				t.Errorf("%s: %d with %d bytes", at, code, len(body))
			}
		}
	}
	for _, at := range []string{"/login", "/forecast"} {
		big := strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\n" + strings.Repeat("y", 64<<20) + "\r\n--x--\r\n")
		r := httptest.NewRequest(http.MethodGet, at, big)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		if _, _, _ = s.do(r); r.MultipartForm != nil || big.Len() < 32<<20 {
			t.Errorf("%s: %d bytes of a body that is not needed were left unread", at, big.Len())
		}
	}
}
