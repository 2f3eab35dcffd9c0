package events

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/worker/outbound"
)

const secret = "0123456789abcdef-of-the-test"

// receiver is where a webhook goes.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	requests []*http.Request
	bodies   []string
}

// newReceiver answers the nth request, from 1, as answer does.
func newReceiver(t *testing.T, answer func(n int, w http.ResponseWriter, r *http.Request)) *receiver {
	t.Helper()
	s := &receiver{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.requests, s.bodies = append(s.requests, r), append(s.bodies, string(body))
		n := len(s.requests)
		s.mu.Unlock()
		answer(n, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *receiver) received() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// hooked is a process with a webhook, and its log.
func hooked(t *testing.T, hook Webhook) (*program, *programs.Output) {
	t.Helper()
	log := &programs.Output{}
	hook.Secret = secret
	text := slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	return newProgram(t, redistest.Client(t), hourly(t, 10), redistest.Prefix(t), slog.New(text), &hook), log
}

func (p *program) pause(scope string) {
	p.events.Upstream(throttle.UpstreamChange{What: "pause", Scope: scope, Left: time.Minute, Until: time.Now().Add(time.Minute)})
}

func (p *program) waits(outcome string, n int) {
	p.t.Helper()
	redistest.WaitFor(p.t, outcome, time.Minute, func() bool { return p.counted(outcome) >= n })
}

// An event is a signed POST of its JSON. An answer of 500 is tried again, with the same id and a signature of its own time.
func TestWebhookIsTriedAgain(t *testing.T) {
	t.Parallel()
	s := newReceiver(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			http.Error(w, "not now", http.StatusInternalServerError)
		}
	})
	p, log := hooked(t, Webhook{URL: s.URL + "/hooks/T0KEN"})
	p.pause("p/a")
	p.waits("delivered", 1)
	want := p.seen(Pause)[0]
	var e Event
	if err := json.Unmarshal([]byte(s.bodies[0]), &e); err != nil || e.Kind != Pause || e.Scope != "p/a" || e.ID != want.ID || !e.Until.Equal(want.Until) {
		t.Errorf("%v: %s", err, s.bodies[0])
	}
	if p.counted("retried") != 1 || p.counted("failed") != 0 || s.received() != 2 || s.bodies[0] != s.bodies[1] {
		t.Errorf("%v, %d requests", p.counts, s.received())
	}
	for i, r := range s.requests {
		err := Verify(secret, r.Header.Get(HeaderSignature), []byte(s.bodies[i]), 0)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/hooks/T0KEN" || r.Header.Get("Content-Type") != "application/json" ||
			r.Header.Get(HeaderEvent) != "pause" || r.Header.Get(HeaderEventID) != want.ID || r.Header.Get("User-Agent") != "headway-events" {
			t.Errorf("attempt %d: %v %s %s %v", i+1, err, r.Method, r.URL, r.Header)
		}
	}
	for _, not := range []string{secret, "T0KEN", "does not accept"} {
		if strings.Contains(log.String(), not) {
			t.Errorf("the log has %s: %s", not, log)
		}
	}
}

// What no retry can cure is given up at once, and the next event follows. The log says why, with neither the secret, nor
// the path, nor the answer.
func TestWebhookThatRefuses(t *testing.T) {
	t.Parallel()
	var elsewhere int
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	t.Cleanup(other.Close)
	s := newReceiver(t, func(n int, w http.ResponseWriter, r *http.Request) {
		switch n {
		case 1:
			http.Error(w, "no hook "+r.URL.Path+" "+r.Header.Get(HeaderSignature), http.StatusNotFound)
		case 2:
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}
	})
	p, log := hooked(t, Webhook{URL: s.URL + "/hooks/T0KEN"})
	for _, scope := range []string{"p/a", "p/b", "p/c"} {
		p.pause(scope)
	}
	p.waits("delivered", 1)
	if p.counted("failed") != 2 || p.counted("retried") != 0 || s.received() != 3 || elsewhere != 0 {
		t.Errorf("%v, %d requests, %d elsewhere", p.counts, s.received(), elsewhere)
	}
	text := log.String()
	for _, want := range []string{`why="it answered 404"`, `why="it answered 307"`, "host=" + strings.TrimPrefix(s.URL, "http://")} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no %s: %s", want, text)
		}
	}
	for _, not := range []string{secret, "T0KEN", "no hook", "v1="} {
		if strings.Contains(text, not) {
			t.Errorf("the log has %s: %s", not, text)
		}
	}
}

// A receiver that hangs ends with the time-out, and is to be tried again.
func TestWebhookThatHangs(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	s := newReceiver(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		select {
		case <-done:
		case <-r.Context().Done():
		}
	})
	defer close(done)
	w, err := newWebhook(Webhook{URL: s.URL, Secret: secret}, nil)
	must(t, err)
	w.timeout = 20 * time.Millisecond
	err = w.send(t.Context(), Event{Kind: Pause}, []byte("{}"))
	if why := w.why(err); why != "no answer within 20ms" || errors.Is(err, asynq.SkipRetry) {
		t.Errorf("%s: %v", why, err)
	}
}

// Nothing but https leaves the machine, and no private address is called; the log names only the host of one that does not answer.
func TestWebhookAddresses(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://127.0.0.1:1/T0KEN": "connection refused",
		"https://10.0.0.1/T0KEN":    "a private address, which tasks may not reach; if it is meant, start the worker with -allow-host 10.0.0.1:443",
	} {
		w, err := newWebhook(Webhook{URL: url, Secret: secret}, nil)
		must(t, err)
		err = w.send(t.Context(), Event{Kind: Pause}, []byte("{}"))
		if why := w.why(err); !strings.Contains(why, want) || strings.Contains(why, "T0KEN") {
			t.Errorf("%s: %s", url, why)
		}
	}
	w, err := newWebhook(Webhook{URL: "https://10.0.0.1/", Secret: secret, AllowHosts: []string{"10.0.0.1"}}, nil)
	if err != nil || w.host != "10.0.0.1" {
		t.Errorf("%+v %v", w, err)
	}
}

// The log names what is wrong, and quotes nothing else: it may have the path.
func TestWhy(t *testing.T) {
	t.Parallel()
	w, err := newWebhook(Webhook{URL: "https://h/T0KEN", Secret: secret}, nil)
	must(t, err)
	for want, err := range map[string]error{
		"lookup h: no such host": &net.DNSError{Err: "no such host", Name: "h"},
		"tls: failed to verify certificate: x509: certificate signed by unknown authority": &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}},
		"the process stopped": context.Canceled,
		"no answer":           errors.New("EOF from https://h/T0KEN"),
	} {
		if why := w.why(fmt.Errorf("of /T0KEN: %w", err)); why != want {
			t.Errorf("%q, want %q", why, want)
		}
	}
}

// The webhook is under a limit that all processes share.
func TestWebhookIsLimited(t *testing.T) {
	t.Parallel()
	s := newReceiver(t, func(int, http.ResponseWriter, *http.Request) {})
	p, _ := hooked(t, Webhook{URL: s.URL})
	other, err := p.events.webhook.limiter(redistest.Client(t))
	must(t, err)
	began := time.Now()
	if d, err := other.Decide(t.Context(), throttle.Request{Scope: webhookName, Cost: 10}); err != nil || !d.Allowed {
		t.Fatalf("another process sends a burst: %+v %v", d, err)
	}
	p.pause("p/a")
	p.waits("delivered", 1)
	if took := time.Since(began); took < 900*time.Millisecond || s.received() != 1 {
		t.Errorf("after a burst of another process this one sent %d requests in %s", s.received(), took)
	}
}

// What is queued when the process stops is tried once more, for some seconds at most.
func TestWebhookAtTheEnd(t *testing.T) {
	t.Parallel()
	s := newReceiver(t, func(int, http.ResponseWriter, *http.Request) {})
	rdb, prefix := redistest.Client(t), redistest.Prefix(t)
	t.Run("the process", func(t *testing.T) {
		p := newProgram(t, rdb, hourly(t, 10), prefix, nil, &Webhook{URL: s.URL, Secret: secret})
		p.pause("p/a") // and it ends
	})
	if s.received() != 1 {
		t.Errorf("%d requests", s.received())
	}
}

func TestPause(t *testing.T) {
	t.Parallel()
	var all time.Duration
	for n := 1; n < attempts; n++ {
		wait := pause(n, errors.New("x"))
		if least := min(time.Second<<(n-1), time.Minute); wait < least || wait > least+least/10+1 {
			t.Errorf("after attempt %d: %s", n, wait)
		}
		all += wait
	}
	if all < 2*time.Minute || all > 5*time.Minute {
		t.Errorf("in all %s", all)
	}
	if wait := pause(1, &outbound.StatusError{Status: 429, RetryAfter: 30 * time.Second}); wait < 30*time.Second || wait > 33*time.Second+1 {
		t.Errorf("asked for 30 s: %s", wait)
	}
	if wait := pause(1, &outbound.StatusError{Status: 429, RetryAfter: time.Hour}); wait > 66*time.Second+1 {
		t.Errorf("asked for an hour: %s", wait)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	body := []byte(`{"kind":"pause"}`)
	// echo -n '1700000000.{"kind":"pause"}' | openssl dgst -sha256 -hmac 0123456789abcdef-of-the-test
	const known = "t=1700000000,v1=f10ae91827fca4aec99c0ed26178bd1af6df209a80854485cf574cc57cec0796"
	if got := sign(secret, body, time.Unix(1700000000, 0)); got != known {
		t.Errorf("%s, want %s", got, known)
	}
	now := sign(secret, body, time.Now())
	for name, tt := range map[string]struct {
		secret, header string
		body           []byte
		ok             bool
	}{
		"now":                {secret, now, body, true},
		"another secret":     {secret + "x", now, body, false},
		"another body":       {secret, now, []byte(`{"kind":"cut"}`), false},
		"old":                {secret, known, body, false},
		"of the future":      {secret, sign(secret, body, time.Now().Add(time.Hour)), body, false},
		"another time":       {secret, "t=1" + strings.TrimPrefix(now, "t="), body, false},
		"no time":            {secret, now[strings.Index(now, ",")+1:], body, false},
		"no signature":       {secret, now[:strings.Index(now, ",")], body, false},
		"empty":              {secret, "", body, false},
		"another first":      {secret, "v0=abc, " + now, body, true},
		"not hexadecimal":    {secret, "t=" + now[2:12] + ",v1=zz", body, false},
		"a part of the hash": {secret, now[:len(now)-2], body, false},
		"no secret":          {"", sign("", body, time.Now()), body, false},
		"a short secret":     {"changeme", sign("changeme", body, time.Now()), body, false},
	} {
		if err := Verify(tt.secret, tt.header, tt.body, 0); (err == nil) != tt.ok || err != nil && !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := Verify("", sign("", body, time.Now()), body, 0); err == nil || !strings.Contains(err.Error(), "set it to that of the webhook") {
		t.Errorf("no secret: %v", err)
	}
}

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must
