package roundtrip

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

// limiterOf is a limiter of a scope p with rules, which heeds the answers of these hosts, or of all.
func limiterOf(t *testing.T, rules string, hosts ...string) *throttle.Limiter {
	t.Helper()
	text := "rules: [" + rules + "]"
	if len(hosts) > 0 {
		text += `, hosts: ["` + strings.Join(hosts, `", "`) + `"]`
	}
	p, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {"+text+"}}"))
	must(t, err)
	l, err := throttle.New(redistest.Client(t), p, throttle.Config{Prefix: redistest.Prefix(t)})
	must(t, err)
	return l
}

// api counts the requests that come to it.
type api struct {
	*httptest.Server
	calls atomic.Int64
}

func newAPI(t *testing.T) *api {
	t.Helper()
	a := &api{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.calls.Add(1)
		_, _ = io.WriteString(w, "hello")
	}))
	t.Cleanup(a.Close)
	return a
}

func always(scope string) func(*http.Request) string {
	return func(*http.Request) string { return scope }
}

// closing is a request's body that knows whether it was closed.
type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error { c.closed.Store(true); return nil }

func get(t *testing.T, c *http.Client, url string) error {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// "One line to wrap a client": its requests wait for their starts.
func TestWrapWaits(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	base := &http.Client{Timeout: 20 * time.Second}
	c := Wrap(base, limiterOf(t, "{name: r, algorithm: token-bucket, limit: 20, per: 1s}"), "p/a")
	began := time.Now()
	for range 5 {
		must(t, get(t, c, a.URL))
	}
	if took := time.Since(began); took < 4*50*time.Millisecond || a.calls.Load() != 5 {
		t.Errorf("%d calls in %s", a.calls.Load(), took)
	}
	if base.Transport != nil || c.Timeout != base.Timeout {
		t.Error("the client that was wrapped is another one by now, or the new one lost something")
	}
}

// A wait ends with its request's context, sends nothing, and closes the body.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	c := Wrap(http.DefaultClient, limiterOf(t, "{name: r, algorithm: fixed-window, limit: 1, per: 24h}"), "p")
	must(t, get(t, c, a.URL))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := &closing{Reader: strings.NewReader("x")}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL, body)
	must(t, err)
	resp, err := c.Do(r)
	if err == nil {
		_ = resp.Body.Close()
	}
	if !errors.Is(err, throttle.ErrMaxWait) || a.calls.Load() != 1 || !body.closed.Load() {
		t.Errorf("%v after %d calls; the body is closed: %t", err, a.calls.Load(), body.closed.Load())
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	c := &http.Client{Transport: &Transport{
		Limiter: limiterOf(t, "{name: r, algorithm: token-bucket, limit: 1, per: 1h, burst: 5}"), Refuse: true,
		Scope: func(r *http.Request) string { return strings.TrimPrefix(r.URL.Path, "/") },
		Cost:  func(*http.Request) int64 { return 3 },
	}}
	must(t, get(t, c, a.URL+"/p/x"))
	err := get(t, c, a.URL+"/p/x")
	limited, is := errors.AsType[*LimitedError](err)
	if !is || limited.Scope != "p/x" || limited.Rule != "r" || limited.RetryAfter <= 0 || limited.RetryAfter > time.Hour+time.Minute {
		t.Errorf("%+v, %v", limited, err)
	}
	must(t, get(t, c, a.URL+"/")) // no scope, no limit
	if err := get(t, c, a.URL+"/q"); !errors.As(err, new(*policy.UnmatchedError)) {
		t.Errorf("%v", err)
	}
	if a.calls.Load() != 2 {
		t.Errorf("%d calls", a.calls.Load())
	}
}

// "Places under concurrency rules are held until the answer's body is closed", and a request that fails gives its place back.
func TestPlacesAreHeld(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	c := &http.Client{Transport: &Transport{Limiter: limiterOf(t, "{name: n, algorithm: concurrency, limit: 1}"), Scope: always("p"), Refuse: true}}
	resp, err := c.Get(a.URL)
	must(t, err)
	limited, is := errors.AsType[*LimitedError](get(t, c, a.URL))
	if !is || limited.Rule != "n" {
		t.Errorf("a second one got in: %+v", limited)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil || string(text) != "hello" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, errors.Join(resp.Body.Close(), resp.Body.Close()))
	for range 2 {
		if err := get(t, c, "http://127.0.0.1:1"); err == nil || errors.As(err, new(*LimitedError)) {
			t.Errorf("%v", err)
		}
	}
	must(t, get(t, c, a.URL)) // since the place was given back
}

// upgrading answers with a body that can be written to, as net/http does after a 101.
type upgrading struct{ conn io.ReadWriteCloser }

func (u upgrading) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: u.conn}, nil
}

type conn struct {
	closing
	io.Writer
}

// A connection that was upgraded can be written to, holds its place until it is closed, and is not settled.
func TestUpgraded(t *testing.T) {
	t.Parallel()
	var sent strings.Builder
	a := &asked{}
	c := &http.Client{Transport: &Transport{
		Limiter: limiterOf(t, "{name: n, algorithm: concurrency, limit: 1}"), Scope: always("p"), Refuse: true, Settle: a.settle,
		Base: upgrading{&conn{closing: closing{Reader: strings.NewReader("")}, Writer: &sent}},
	}}
	resp, err := c.Get("http://api.example.com")
	must(t, err)
	w, is := resp.Body.(io.Writer)
	if !is {
		t.Fatal("the body cannot be written to")
	}
	if _, err := io.WriteString(w, "hello"); err != nil || sent.String() != "hello" {
		t.Errorf("%q, %v", sent.String(), err)
	}
	if err := get(t, c, "http://api.example.com"); !errors.As(err, new(*LimitedError)) {
		t.Errorf("%v", err)
	}
	must(t, resp.Body.Close())
	must(t, get(t, c, "http://api.example.com"))
	if n := a.times.Load(); n != 0 {
		t.Errorf("it was settled %d times", n)
	}
}

func TestIncomplete(t *testing.T) {
	t.Parallel()
	if err := get(t, &http.Client{Transport: &Transport{}}, "http://127.0.0.1:1"); !errors.Is(err, errIncomplete) {
		t.Errorf("%v", err)
	}
	never := LimitedError{Scope: "p", Rule: "r", RetryAfter: throttle.Never}
	if text := never.Error(); !strings.Contains(text, "until it is changed") {
		t.Error(text)
	}
}

// An answer that refuses a request is the caller's as it is, and pauses the scope for all, unless it is to be ignored. "Answers of
// other hosts are ignored", too, where limits.yaml names some.
func TestTransportHeeds(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, "slow down")
	}))
	defer s.Close()
	for name, row := range map[string]struct {
		ignore bool
		hosts  []string
		heeds  bool
	}{
		"heeded": {heeds: true}, "ignored": {ignore: true},
		"of its host": {hosts: []string{s.Listener.Addr().String()}, heeds: true}, "of another host": {hosts: []string{"api.example.com"}},
	} {
		limiter := limiterOf(t, "{name: r, algorithm: token-bucket, limit: 20, per: 1s, burst: 20}", row.hosts...)
		c := &http.Client{Transport: &Transport{Limiter: limiter, Scope: always("p/a"), Refuse: true, IgnoreAnswers: row.ignore}}
		resp, err := c.Get(s.URL)
		must(t, err)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusTooManyRequests || string(body) != "slow down" {
			t.Errorf("%s: %d, %q, %v", name, resp.StatusCode, body, err)
		}
		told, err := limiter.UpstreamState(t.Context(), "p/a")
		if err != nil || len(told.Pauses) > 0 != row.heeds {
			t.Errorf("%s: %+v, %v", name, told, err)
		}
		err = get(t, c, s.URL)
		limited, is := errors.AsType[*LimitedError](err)
		if is != row.heeds {
			t.Errorf("%s: %v", name, err)
		} else if is && (limited.Rule != "" || limited.RetryAfter < 50*time.Second ||
			!strings.Contains(err.Error(), "the API of p/a is not called for another ")) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

var must = redistest.Must
