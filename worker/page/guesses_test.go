package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Tries are counted by name and by address, and each comes back after its part of a minute.
func TestGuesses(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	g := newGuesses()
	try := func(name, from, browser string) bool {
		leave, ok := g.enter(name, from, browser, now)
		if ok {
			leave()
		}
		return ok
	}
	tries := func(most int, name, from func(int) string) (n int) {
		for i := range most {
			if try(name(i), from(i), "") {
				n++
			}
		}
		return n
	}
	always := func(text string) func(int) string { return func(int) string { return text } }
	each := func(text string) func(int) string { return func(i int) string { return fmt.Sprint(text, i) } }
	if n := tries(50, always("anna"), always("here")); n != triesAtOne {
		t.Errorf("at one name from one address %d tries are made", n)
	}
	if !try("ben", "here", "") || !try("anna", "there", "") {
		t.Error("guesses at anna from here lock out others")
	}
	if n := tries(300, always("anna"), each("at")); n != triesAtAll-triesAtOne-1 {
		t.Errorf("at one name from everywhere %d more tries are made", n)
	}
	if n := tries(300, each("name"), always("here")); n != triesAtAll-triesAtOne-1 {
		t.Errorf("from one address %d more tries are made", n)
	}
	if try("anna", "home", "") || try("carl", "here", "") {
		t.Error("neither a name nor an address is full")
	}
	for range triesAtOne {
		if !try("anna", "here", "a browser of hers") {
			t.Error("guesses of others lock out a browser in which anna has logged in")
		}
	}
	if try("anna", "here", "a browser of hers") {
		t.Error("such a browser has no bound")
	}
	made := triesAtOne
	for i := range 3 * triesAtAll {
		if try("anna", "here", fmt.Sprint("another of her browsers ", i)) {
			made++
		}
	}
	if made != triesAtAll {
		t.Errorf("all browsers of a person have %d tries", made)
	}
	if now = now.Add(time.Minute / triesAtAll); !try("carl", "home", "") || !try("dora", "here", "") || try("eve", "here", "") {
		t.Error("one try must have come back to the address")
	}
	now = now.Add(2 * time.Minute)
	for i := range mostKeys {
		try(fmt.Sprint(i), fmt.Sprint(i), "")
	}
	if len(g.full) > mostKeys {
		t.Errorf("%d keys are kept", len(g.full))
	}
	if now = now.Add(2 * time.Minute); !try("anna", "here", "") {
		t.Error("what is over keeps others out")
	}
	for range mostWaiting {
		g.waiting <- struct{}{}
	}
	if try("fay", "afar", "") || !try("anna", "here", "a browser of hers") {
		t.Error("a try waits beside too many, or one of a known browser does not")
	}
}

// A success of one's own gives back no tries at others, and who has logged in before is not locked out by guesses.
func TestGuessesAtTheLogin(t *testing.T) {
	t.Parallel()
	path, _ := usersFile(t)
	users, err := LoadUsers(path)
	must(t, err)
	s := newSite(t, func(c *Config) { c.Identify, c.Users = nil, users })
	login := func(name, password string, cookies []*http.Cookie) (int, http.Header) {
		r := formTo("/login", url.Values{"name": {name}, "password": {password}, "next": {"/"}})
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
	second, err := New(Config{Redis: s.rdb, Users: users}) // with tries of its own: those of her browser are used up above
	must(t, err)
	for range 2 * triesAtOne {
		s.handler = second
		_, _ = login("anna", "guess", nil)
	}
	if code, header = login("anna", "correct horse", cookies[1:]); code != http.StatusSeeOther || len(header.Values("Set-Cookie")) != 1 {
		t.Errorf("in a browser in which she has logged in before: %d", code)
	}
}

// Of whom tries are counted: behind a proxy the address that it names, and of IPv6 the network.
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

// A form of somebody who is not known is refused before it is read whole, and is not echoed.
func TestLargeLogin(t *testing.T) {
	t.Parallel()
	path, _ := usersFile(t)
	users, err := LoadUsers(path)
	must(t, err)
	s := newSite(t, func(c *Config) { c.Identify, c.Users = nil, users })
	for _, at := range []string{"/login", "/forecast", "/change?verb=pause"} {
		for _, multi := range []bool{false, true} {
			r := requestOf(http.MethodPost, at, form("name", "anna", "password", "correct horse", "held:x", strings.Repeat("zz", 2<<20)), multi)
			if code, body, _ := s.do(r); code != http.StatusRequestEntityTooLarge || len(body) > 1000 || strings.Contains(body, "zz") {
				t.Errorf("%s: %d with %d bytes", at, code, len(body))
			}
		}
	}
	many := form("name", "anna")
	for i := range mostHeld + 1 {
		many.Set(fmt.Sprint("held:", i), "")
	}
	for _, at := range []string{"/login", "/change"} {
		if code, body := s.post(at, many); code != http.StatusRequestEntityTooLarge || len(body) > 1000 {
			t.Errorf("%s with many fields: %d with %d bytes", at, code, len(body))
		}
	}
	big := strings.NewReader("--x\r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\r\n" + strings.Repeat("y", 64<<20) + "\r\n--x--\r\n")
	r := httptest.NewRequest(http.MethodGet, "/login", big)
	r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
	if code, _, _ := s.do(r); code != http.StatusOK || r.MultipartForm != nil || big.Len() < 32<<20 {
		t.Errorf("%d, and %d bytes of a body that nobody asked for were left unread", code, big.Len())
	}
	if code, body := s.post("/forecast", form("batch", strings.Repeat("z", 20<<10))); code != http.StatusUnauthorized || !strings.Contains(body, "what you typed is kept") {
		t.Errorf("a form that can be kept: %d", code)
	}
}
