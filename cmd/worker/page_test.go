package main

import (
	"bufio"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/headway-go/headway/worker/page"
)

// members are the groups of the people that the proxy of the tests knows, by name.
var members = map[string]string{"anna": "dev, team-platform", "ben": "dev", "team-platform": ""}

// inFront starts a proxy of net/http/httputil in front of a page. who says which user it names; add has it keep what clients send.
func inFront(t *testing.T, shown string, add bool) *httptest.Server {
	t.Helper()
	to, err := url.Parse(shown)
	must(t, err)
	front := httptest.NewServer(&httputil.ReverseProxy{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.SetXForwarded()
		if !add {
			r.Out.Header.Del("X-Forwarded-User")
			r.Out.Header.Del("X-Forwarded-Groups")
		}
		if name, _, is := r.In.BasicAuth(); is {
			r.Out.Header.Add("X-Forwarded-User", name)
			r.Out.Header.Add("X-Forwarded-Groups", members[name])
		}
	}})
	t.Cleanup(front.Close)
	return front
}

// asks asks the proxy as a user, with headers that a client may send.
func asks(t *testing.T, front *httptest.Server, path, user, host string, forged ...string) (int, *bufio.Reader) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+path, nil)
	must(t, err)
	r.Host = host
	if user != "" {
		r.SetBasicAuth(user, "secret")
	}
	for _, header := range forged {
		r.Header.Set(header, "team-platform")
	}
	answer, err := front.Client().Do(r)
	must(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer.StatusCode, bufio.NewReader(answer.Body)
}

// docs/page.md#behind-a-proxy, before a proxy of net/http/httputil: who asks is who the proxy says, whatever the client says.
func TestPageBehindAProxy(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../docs/page.md")
	must(t, err)
	_, line, is := strings.Cut(string(docs), "\n### Behind a proxy\n\n```sh\nworker page -listen 127.0.0.1:9091 ")
	if !is {
		t.Fatal("docs/page.md does not say how")
	}
	line, _, _ = strings.Cut(line, "\n")
	r := start(t, whole, nil, append([]string{"page", "-redis", ownRedis(t), "-listen", "127.0.0.1:0"}, strings.Fields(line)...)...)
	r.says("url=")
	const host = "limits.example.com"
	front, adding := inFront(t, r.found("url"), false), inFront(t, r.found("url"), true)
	for _, one := range []struct {
		front      *httptest.Server
		user, host string
		forged     []string
		code       int
		says       string
	}{
		{front, "anna", host, nil, http.StatusOK, "anna <span class=\"chip plain\">admin<"},
		{front, "ben", host, nil, http.StatusOK, "ben <span class=\"chip plain\">owner<"},
		{front, "ben", host, []string{"X-Forwarded-User", "X-Forwarded-Groups"}, http.StatusOK, "ben <span class=\"chip plain\">owner<"},
		{front, "team-platform", host, nil, http.StatusOK, "<span class=\"chip plain\">owner<"},
		{front, "", host, []string{"X-Forwarded-User", "X-Forwarded-Groups"}, http.StatusForbidden, "does not know you"},
		{front, "anna", "evil.example", nil, http.StatusMisdirectedRequest, "-proxy-host"},
		{adding, "ben", host, []string{"X-Forwarded-Groups"}, http.StatusForbidden, "does not know you"},
		{adding, "ben", host, []string{"X-Forwarded-User"}, http.StatusForbidden, "does not know you"},
	} {
		code, body := asks(t, one.front, "/", one.user, one.host, one.forged...)
		if text, err := io.ReadAll(body); err != nil || code != one.code || !strings.Contains(string(text), one.says) {
			t.Errorf("%q at %s with %q: %d, %v\n%s", one.user, one.host, one.forged, code, err, text)
		}
	}
	code, stream := asks(t, front, "/live?at=/", "anna", host)
	if event, err := stream.ReadString('\n'); code != http.StatusOK || err != nil || !strings.HasPrefix(event, "event: ") {
		t.Errorf("a stream: %d, %q, %v", code, event, err)
	}
	r.quits()
}

// A page for this machine alone gives nothing to a proxy in front: everybody behind it would be an admin.
func TestPageOfThisMachineBehindAProxy(t *testing.T) {
	t.Parallel()
	r := start(t, whole, nil, "page", "-redis", ownRedis(t), "-listen", ":0", "-prefix", "/limits")
	r.says("url=")
	says(t, get(t, r.found("url"), http.StatusOK), "There are no limits yet")
	code, body := asks(t, inFront(t, r.found("url"), false), "/", "", "localhost")
	if text, err := io.ReadAll(body); err != nil || code != http.StatusForbidden || !strings.Contains(string(text), "give the page users") {
		t.Errorf("%d, %v\n%s", code, err, text)
	}
	r.quits()
}

// The redirects of a worker with the page have the headers of the page.
func TestRootHasThePagesHeaders(t *testing.T) {
	t.Parallel()
	shown, err := page.New(page.Config{Redis: open(t, ownRedis(t)), Local: "me", Prefix: pagePath})
	must(t, err)
	all := beside(http.NotFoundHandler(), shown)
	for _, path := range []string{"/", "/page", "/?q=a"} {
		w := httptest.NewRecorder()
		all.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if at := w.Header().Get("Location"); at != "/page/" || w.Code/100 != 3 || !strings.Contains(w.Header().Get("Content-Security-Policy"), "frame-ancestors 'none'") || w.Header().Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %d to %q with %v", path, w.Code, at, w.Header())
		}
	}
	for _, path := range []string{"/page//scope", "/page/../page", "/pagefoo", "//evil.example/"} {
		w := httptest.NewRecorder()
		all.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if w.Code != http.StatusNotFound {
			t.Errorf("%s: %d to %q", path, w.Code, w.Header().Get("Location"))
		}
	}
}
