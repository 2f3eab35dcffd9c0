// Package page is a web page about running limits. It shows which tasks wait, why and until when, which
// applications have used the limits, and the effect of a change before it is made.
//
//	handler, err := page.New(page.Config{Redis: rdb, Prefix: "/limits", Identify: whoAsks})
//	mux.Handle("/limits/", handler)
//
// The page and the program worker use the same service, which checks the rights, so both answer in the
// same words. The page is one http.Handler. Templates, style and script are embedded, and browsers fetch
// nothing from other hosts. It works without JavaScript, and updates itself with it.
//
// It reads Redis for all viewers together, and not at all while there are no viewers.
package page

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// Config configures the page. Redis is required, and one way to identify users: Identify, Local, or
// Proxy and Users, alone or together.
type Config struct {
	// Redis has the tasks and the limits. The page does not take ownership of it.
	Redis redis.UniversalClient
	// Limiter has the limits of this process, and follows those in Redis. Defaults to a limiter of the
	// page's own, which reads the limits from Redis while the page has viewers.
	Limiter *throttle.Limiter
	// KeyPrefix begins the keys in Redis, as throttle.Config.Prefix. Defaults to "hw".
	KeyPrefix string
	// Prefix is the path under which the page is mounted, such as "/limits". Defaults to none: the page
	// then has the server to itself.
	Prefix string

	// Identify returns the actor of a request, and false to refuse it. It is called for each request, and
	// about once a second while a screen is open, for as long as its stream lasts.
	Identify func(*http.Request) (Actor, bool)
	// Proxy is a proxy in front of the page that authenticates requests.
	Proxy *Proxy
	// Users are people who log in with passwords, and programs with tokens.
	Users *Users
	// Local is the name in the history of the person who uses the page on this machine, as an admin.
	// Requests from other machines, and to names that are not this machine's, are refused.
	Local string

	// Schedules are the schedules that this process runs; the page shows their next runs. Defaults to none.
	Schedules []*schedule.Schedule
	// Logger gets a line for each change and each login. Defaults to none.
	Logger *slog.Logger
}

//go:embed assets templates
var embedded embed.FS

type handler struct {
	cfg       Config
	log       *slog.Logger
	now       func() time.Time
	store     *policystore.Store
	limiter   *throttle.Limiter
	inspector *asynq.Inspector
	service   *control.Service
	sessions  *sessions
	guesses   *guesses
	open      openRequests
	templates map[string]*template.Template // by screen
	hub       *hub
	mux       *http.ServeMux
	following following
	heartbeat time.Duration
	longest   time.Duration // a stream lasts
	jobs      *jobs
	// answerWithin is how long a request waits for its change of tasks.
	answerWithin time.Duration
	most         int // tasks that one request changes at most; 0 for control.MostTasks
}

// Page is the page as a handler of all requests below Config.Prefix.
type Page struct {
	http.Handler
	jobs *jobs
}

// Close stops the changes of waiting tasks that are under way, and returns when the history has what
// they have changed. A page that is not closed loses that record when its process ends.
func (p *Page) Close() { p.jobs.close() }

// New returns a page. It does no I/O and starts nothing: Redis is read only while the page has viewers.
// The error names what is wrong with cfg.
func New(cfg Config) (*Page, error) {
	h, err := newHandler(cfg)
	if err != nil {
		return nil, err
	}
	if cfg.Users != nil {
		go cfg.Users.follow(h.jobs.ctx, h.log)
	}
	protected := http.NewCrossOriginProtection().Handler(h.mux)
	return &Page{secure(http.StripPrefix(h.cfg.Prefix, h.canonical(protected))), h.jobs}, nil
}

func newHandler(cfg Config) (*handler, error) {
	h := &handler{
		cfg: cfg, log: cfg.Logger, now: time.Now, sessions: &sessions{byID: map[[sha256.Size]byte]session{}}, guesses: newGuesses(),
		open: openRequests{n: map[string]int{}}, jobs: newJobs(),
		heartbeat: heartbeat, longest: streamLongest, answerWithin: answerWithin,
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	h.store = policystore.New(cfg.Redis, policystore.Config{Prefix: cfg.KeyPrefix})
	if h.limiter = cfg.Limiter; h.limiter == nil {
		none, err := policy.New(policy.UnmatchedDeny, nil)
		if err != nil {
			return nil, fmt.Errorf("page: %w", err)
		}
		if h.limiter, err = throttle.New(cfg.Redis, none, throttle.Config{Prefix: cfg.KeyPrefix, TierOf: h.store.TierOf}); err != nil {
			return nil, fmt.Errorf("page: %w", err)
		}
		h.following.own = true
	}
	h.inspector = asynq.NewInspectorFromRedisClient(cfg.Redis)
	h.service = control.New(control.Config{Redis: cfg.Redis, Limiter: h.limiter, KeyPrefix: cfg.KeyPrefix, Store: h.store, Logger: h.log})
	h.hub = newHub(func() time.Time { return h.now() })
	var err error
	if h.templates, err = h.parse(); err != nil {
		return nil, fmt.Errorf("page: %w", err)
	}
	h.routes()
	return h, nil
}

func (h *handler) check() error {
	c := &h.cfg
	logins := c.Proxy != nil || c.Users != nil
	switch {
	case c.Redis == nil:
		return errors.New("page: Config.Redis is nil")
	case c.Identify == nil && !logins && c.Local == "":
		return errors.New("page: Config has no way to identify users: set Identify, Proxy, Users, or Local for this machine alone")
	case c.Identify != nil && (logins || c.Local != "") || logins && c.Local != "":
		return errors.New("page: Config has several ways to identify users: set one of Identify, Proxy with or without Users, and Local")
	case c.Prefix != "" && (!strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/")):
		return fmt.Errorf("page: Config.Prefix %q does not begin with a slash, or ends with one", c.Prefix)
	}
	if c.Proxy != nil {
		return c.Proxy.check()
	}
	return nil
}

// canonical redirects the prefix itself to the overview, and refuses paths that ServeMux would redirect elsewhere.
func (h *handler) canonical(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch at := r.URL.Path; {
		case at == "":
			http.Redirect(w, r, h.cfg.Prefix+"/", http.StatusPermanentRedirect)
		case at[0] != '/' || path.Clean(at) != at:
			http.NotFound(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// secure sets the headers of all answers.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "+
			"form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (h *handler) routes() {
	h.mux = http.NewServeMux()
	assets, _ := fs.Sub(embedded, "assets")
	h.mux.Handle("GET /assets/", http.StripPrefix("/assets", cached(http.FileServerFS(assets))))
	if h.cfg.Users != nil {
		h.mux.HandleFunc("GET /login", h.login)
		h.mux.HandleFunc("POST /login", h.postLogin)
		h.mux.HandleFunc("POST /logout", h.logout)
	}
	for _, r := range h.routed() {
		h.mux.HandleFunc(r.pattern, h.authorized(r))
	}
}

// cached lets browsers keep assets, whose URLs contain a hash of all of them.
func cached(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("v") == assetVersion() {
			w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		}
		next.ServeHTTP(w, r)
	})
}

// following keeps the page's own limiter up to date with the limits in Redis.
type following struct {
	own bool // the limiter is the page's own

	mu     sync.Mutex
	known  control.Limits
	err    error // of the last reading; known is older then
	read   time.Time
	number int64
	until  time.Time // when the policy changes without a new version
}

// limitsTimeout bounds how long a request waits for the limits by which its rights are checked.
const limitsTimeout = 2 * time.Second

// limits returns the current version of the limits, at most half a second old.
func (h *handler) limits(ctx context.Context) (control.Limits, error) {
	f := &h.following
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.now().Sub(f.read) >= snapshotEvery/2 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limitsTimeout)
		defer cancel()
		f.err = h.follow(ctx, f)
		f.read = h.now()
	}
	return f.known, f.err
}

// follow reads the version, and the policy of the page's own limiter if that has changed. f.mu is held.
func (h *handler) follow(ctx context.Context, f *following) error {
	l, err := h.service.Limits(ctx)
	if err != nil {
		return err
	}
	f.known = l
	v := l.Version
	if !f.own || v == nil || v.Number == f.number && (f.until.IsZero() || l.At.Before(f.until)) {
		return nil
	}
	rules, until, err := h.store.Policy(ctx, *v, l.At)
	if err == nil {
		h.limiter.SetPolicy(rules)
		f.number, f.until = v.Number, until
	}
	return err
}
