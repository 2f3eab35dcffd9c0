package page

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policystore"
)

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
		if s.of(request(id), now.Add(since)) == nil {
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

// The tries from one address are counted by the minute, and forgotten after a login.
func TestTries(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)
	s := newSessions()
	for range triesAMinute {
		if !s.mayTry("a", now) {
			t.Fatal("refused too early")
		}
	}
	if s.mayTry("a", now.Add(59*time.Second)) || !s.mayTry("b", now) || !s.mayTry("a", now.Add(time.Minute)) {
		t.Error("tries are counted by the address and the minute")
	}
	for range triesAMinute {
		s.mayTry("a", now.Add(time.Minute))
	}
	if s.succeeded("a"); !s.mayTry("a", now.Add(time.Minute)) {
		t.Error("the tries before a login are counted after it")
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
	stream := liveOf(t, front.URL, first)
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

// liveOf opens the stream of the overview.
func liveOf(t *testing.T, base string, cookie *http.Cookie) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/live?at=/", nil)
	must(t, err)
	r.AddCookie(cookie)
	answer, err := http.DefaultClient.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", answer, err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}

// lastEvent reads a stream to its end.
func lastEvent(stream *http.Response) (last string) {
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		if name, is := strings.CutPrefix(lines.Text(), "event: "); is {
			last = name
		}
	}
	return last
}

// The rights of an owner are those of the limits that stand, from the first request on, and also after a time in which nobody looked.
func TestRightsFollowTheLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.who = Actor{Name: "pat", Groups: []string{"team-acme"}, Role: RoleOwner, Scopes: []string{"search"}}
	if code, body := s.get("/scope?scope=payments/acme"); code != http.StatusOK {
		t.Errorf("the first request: %d\n%s", code, body)
	}
	another := "team-other"
	if _, err := s.store.Reassign(t.Context(), policystore.Edit{By: "root"}, "payments/acme", policystore.Assigned{Owner: &another}); err != nil {
		t.Fatal(err)
	}
	redistest.WaitFor(t, "the new owner to count", 10*time.Second, func() bool {
		code, _ := s.get("/scope?scope=payments/acme")
		return code == http.StatusForbidden
	})
}

// A stream ends when its viewer may no longer see what it shows.
func TestLiveEndsWithTheRight(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.who = Actor{Name: "pat", Groups: []string{"team-acme"}, Role: RoleOwner, Scopes: []string{"search"}}
	front := httptest.NewServer(s.handler)
	defer front.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+"/live?at="+url.QueryEscape("/scope?scope=payments/acme"), nil)
	must(t, err)
	answer, err := http.DefaultClient.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", answer, err)
	}
	defer func() { _ = answer.Body.Close() }()
	another := "team-other"
	if _, err := s.store.Reassign(t.Context(), policystore.Edit{By: "root"}, "payments/acme", policystore.Assigned{Owner: &another}); err != nil {
		t.Fatal(err)
	}
	if last := lastEvent(answer); last != "bye" || ctx.Err() != nil { // or else it lasts until ctx ends
		t.Errorf("the stream ends with %q: %v", last, ctx.Err())
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
	if code, _ := s.make(form("verb", "pause", "scope", "payments", "padding", strings.Repeat("x", held+1))); code < 400 || s.version() != 1 {
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
