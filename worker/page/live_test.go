package page

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/policystore"
)

// liveOf opens the stream of a screen of a site.
func liveOf(t *testing.T, s *site, path string, cookie http.Cookie) *events {
	t.Helper()
	front := httptest.NewServer(s.handler)
	t.Cleanup(front.Close) // after the stream
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, front.URL+"/live?at="+url.QueryEscape(path), nil)
	must(t, err)
	r.AddCookie(&cookie)
	answer, err := http.DefaultClient.Do(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", answer, err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return eventsOf(answer)
}

// events reads a stream as the standard says: a line ends with CR, LF or both, and an empty line ends an event.
type events struct {
	lines      *bufio.Scanner
	name, data string
}

func eventsOf(stream *http.Response) *events {
	e := &events{lines: bufio.NewScanner(stream.Body)}
	e.lines.Buffer(nil, 1<<20)
	e.lines.Split(func(data []byte, end bool) (int, []byte, error) {
		at := bytes.IndexAny(data, "\r\n")
		switch {
		case at < 0 || data[at] == '\r' && at+1 == len(data) && !end:
			return 0, nil, nil
		case data[at] == '\r' && at+1 < len(data) && data[at+1] == '\n':
			return at + 2, data[:at], nil
		}
		return at + 1, data[:at], nil
	})
	return e
}

// next reads an event, and reports whether there was one.
func (e *events) next() bool {
	e.name, e.data = "", ""
	var data []string
	for e.lines.Scan() {
		field, value, _ := strings.Cut(e.lines.Text(), ": ")
		switch field {
		case "event":
			e.name = value
		case "data":
			data = append(data, value)
		case "":
			e.data = strings.Join(data, "\n")
			return true
		}
	}
	return false
}

// until reads events to the next with a name.
func (e *events) until(t *testing.T, name string) {
	t.Helper()
	for e.next() {
		if e.name == name {
			return
		}
	}
	t.Fatalf("the stream ended without %q: %v", name, e.lines.Err())
}

// endsWith reads to the end, which must come after an event with a name.
func (e *events) endsWith(t *testing.T, name string) {
	t.Helper()
	last := ""
	for e.next() {
		last = e.name
	}
	if last != name {
		t.Errorf("the stream ends with %q, want %q", last, name)
	}
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
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	if kind := answer.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatal(kind)
	}
	stream := eventsOf(answer)
	for range 3 {
		stream.until(t, "at")
	}
}

// The current limits have the rights of an owner. A stream ends when its viewer may no longer see what it shows.
func TestLiveEndsWithTheRight(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.actor = Actor{Name: "pat", Groups: []string{"team-acme"}, Role: RoleOwner, Scopes: []string{"search"}}
	stream := liveOf(t, s, "/scope?scope=payments/acme", http.Cookie{})
	another := "team-other"
	_, err := s.store.Assign(t.Context(), policystore.Edit{By: "root"}, "payments/acme", policystore.Assigned{Owner: &another})
	must(t, err)
	stream.endsWith(t, "bye") // or else it lasts until its context ends
	s.sees(http.StatusForbidden, "/scope?scope=payments/acme")
}

// Whatever text an event has, it is one event: a payload forges no other.
func TestStreamIsNotForged(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"\r", "\n", "\r\n", "\n\r", "\r\r\n"} {
		text := "a" + end + end + "event: bye" + end + "data: b" + end
		w := httptest.NewRecorder()
		one := &stream{w: w, to: http.NewResponseController(w)}
		must(t, one.send("html", text))
		e := eventsOf(w.Result())
		if !e.next() || e.name != "html" || !strings.Contains(e.data, "event: bye") || e.next() {
			t.Errorf("%q becomes %q", text, w.Body)
		}
	}
}

// A stream ends when the rights of its viewer change.
func TestLiveEndsWithAnotherActor(t *testing.T) {
	t.Parallel()
	begin := Actor{Name: "pat", Role: RoleOwner, Groups: []string{"a", "b"}, Scopes: []string{"payments", "search"}}
	for name, change := range map[string]func(*Actor){
		"role": func(a *Actor) { a.Role = RoleViewer }, "no role": func(a *Actor) { a.Role = RoleNone }, "more": func(a *Actor) { a.Role = RoleAdmin },
		"scopes": func(a *Actor) { a.Scopes = []string{"search"} }, "groups": func(a *Actor) { a.Groups = nil },
		"person": func(a *Actor) { a.Name = "quinn" }, "refused": func(a *Actor) { a.Name = "gone" },
		"order": func(a *Actor) { a.Groups, a.Scopes = []string{"b", "a"}, []string{"search", "payments"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var now atomic.Pointer[Actor]
			now.Store(&begin)
			s := newSite(t, func(c *Config) {
				c.Identify = func(*http.Request) (Actor, bool) { actor := now.Load(); return *actor, actor.Name != "gone" }
			})
			e := liveOf(t, s, "/", http.Cookie{})
			e.until(t, "at")
			after := begin
			change(&after)
			now.Store(&after)
			if name == "order" { // which means nothing
				e.until(t, "at")
				e.until(t, "at")
			} else {
				e.endsWith(t, "bye")
			}
		})
	}
}

// A stream ends with the session of its viewer, and does not prolong it.
func TestLiveEndsWithTheSession(t *testing.T) {
	t.Parallel()
	s, h, _ := newSiteOfUsers(t)
	var ahead atomic.Int64
	h.now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s.handler = h.mux
	cookie := s.login("anna", "correct horse")
	ahead.Add(int64(time.Hour))
	stream := liveOf(t, s, "/", *cookie)
	stream.until(t, "beat")
	ahead.Add(int64(sessionIdle - time.Hour + time.Second))
	stream.endsWith(t, "bye") // after two hours without use
	cookie = s.login("anna", "correct horse")
	stream = liveOf(t, s, "/", *cookie)
	r := formTo("/logout", nil)
	r.AddCookie(cookie)
	s.do(r)
	stream.endsWith(t, "bye")
}

// A stream ends after some minutes and the browser opens another, so that a proxy checks the viewer again.
func TestLiveBeginsAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	h := pageOfSite(t, s)
	h.longest, s.handler = 10*time.Millisecond, h.mux
	liveOf(t, s, "/", http.Cookie{}).endsWith(t, "again")
}
