// Package serve decides for programs in any language: it puts a throttle.Limiter behind HTTP, with bodies in JSON.
//
//	handler, err := serve.New(serve.Config{Limiter: limiter, Clients: clients})
//	http.ListenAndServeTLS(addr, cert, key, handler)
//
//	$ curl -d '{"scope":"payments/acme"}' -H 'Content-Type: application/json' localhost:9092/v1/decide
//	{"allowed":true,"rule":"tenant","rule_scope":"payments/acme","limit":100,"remaining":99,"reset_ms":1000}
//
// docs/serve.md describes the requests, openapi.yaml all of their fields. The handler keeps nothing itself: what a client reserved or
// leased at one server, another one settles and renews. Requests that come together share their round trips to Redis.
package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // for openapi.yaml
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Config configures New.
type Config struct {
	// Limiter decides. Required. Under rules with on_redis_error: share, its Heartbeat has to run.
	Limiter *throttle.Limiter
	// Clients are the programs that may ask, each for its scopes. Without them every request may spend from every scope: only for
	// an address that other machines do not reach. Defaults to none.
	Clients *Clients
	// MaxWaiting bounds how many requests wait for their start, or hold a lease by their connection, at the same time. Further
	// ones are answered 503. Defaults to 10,000.
	MaxWaiting int
	// Logger gets a line for each request that failed by no fault of its client. Defaults to slog.Default().
	Logger *slog.Logger
}

// Handler answers the requests of docs/serve.md. It is safe for concurrent use.
type Handler struct {
	cfg     Config
	calls   map[string]call // by path
	waiting atomic.Int64
}

// call answers one request that a client may make. The error is a *fault, or one of the limiter.
type call func(ctx context.Context, r *request) (any, error)

// request is a request that was read.
type request struct {
	http   *http.Request
	w      http.ResponseWriter
	client *Client // nil without Config.Clients
	body   []byte
}

// own returns the id under which Redis knows one of the client: clients that share a scope cannot settle each other's reservations, nor be
// answered with each other's grants. It is a hash, since names and ids together may be longer than an id.
func (r *request) own(id string) string {
	if r.client == nil || id == "" {
		return id
	}
	sum := sha256.Sum256([]byte(r.client.Name + "/" + id)) // a name has no '/'
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

const (
	maxBody    = 64 << 10
	mostWaits  = 10_000
	apiPath    = "/v1/"
	apiFile    = apiPath + "openapi.yaml"
	jsonType   = "application/json"
	retryAfter = "Retry-After"
)

//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the description of all requests and answers, an OpenAPI 3.1 document in YAML, which the handler serves as
// /v1/openapi.yaml.
func OpenAPI() []byte { return bytes.Clone(openAPI) }

// New returns a Handler for the paths below /v1/. It does no I/O.
func New(cfg Config) (*Handler, error) {
	if cfg.Limiter == nil {
		return nil, errors.New("serve: New needs a Limiter")
	}
	if cfg.MaxWaiting <= 0 {
		cfg.MaxWaiting = mostWaits
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	h := &Handler{cfg: cfg}
	h.calls = map[string]call{
		"decide": h.decide, "reserve": h.reserve, "settle": h.settle, "refund": h.refund,
		"lease": h.lease, "renew": h.renew, "release": h.release, "report": h.report,
	}
	return h, nil
}

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header()["Cache-Control"] = noStore
	if r.URL.Path == apiFile && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(openAPI)
		return
	}
	answer, err := h.answer(w, r)
	switch {
	case err != nil:
		h.fail(w, r, err)
	case answer != nil: // else it was written
		write(w, http.StatusOK, answer)
	}
}

// answer finds out who asks and for what, before it reads anything.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request) (any, error) {
	req := &request{http: r, w: w}
	if h.cfg.Clients != nil {
		if req.client = h.cfg.Clients.Of(r.Header.Get("Authorization"), r.TLS); req.client == nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="headway"`)
			return nil, &fault{http.StatusUnauthorized, "no client has this token or certificate", "the header Authorization: Bearer TOKEN, with a token of the clients file"}
		}
	}
	name, under := strings.CutPrefix(r.URL.Path, apiPath)
	answer := h.calls[name]
	switch {
	case !under || answer == nil:
		return nil, &fault{http.StatusNotFound, "no such path", "GET " + apiFile + ", which has all"}
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		return nil, &fault{http.StatusMethodNotAllowed, "the method is not POST", "POST " + r.URL.Path}
	case !isJSON(r.Header.Get("Content-Type")): // a web page of another site cannot send that
		return nil, &fault{http.StatusUnsupportedMediaType, "the body is not declared as JSON", "the header Content-Type: " + jsonType}
	}
	buf, _ := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	body := io.Reader(r.Body)
	if r.ContentLength < 0 || r.ContentLength > maxBody {
		body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	if _, err := buf.ReadFrom(body); err != nil {
		if errors.As(err, new(*http.MaxBytesError)) {
			return nil, &fault{http.StatusRequestEntityTooLarge, "the body is longer than 64 KiB", "a shorter one; of an answer's body the first 4 KiB are enough"}
		}
		return nil, &fault{http.StatusBadRequest, "the body ended early", ""}
	}
	req.body = buf.Bytes()
	return answer(r.Context(), req)
}

var (
	buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	noStore = []string{"no-store"}
	isOf    = []string{jsonType}
)

func isJSON(contentType string) bool {
	kind, _, _ := strings.Cut(contentType, ";")
	return kind == jsonType || strings.EqualFold(strings.TrimSpace(kind), jsonType)
}

func write(w http.ResponseWriter, status int, answer any) {
	buf, _ := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(buf)
	buf.Reset()
	if err := json.MarshalWrite(buf, answer); err != nil { // it has no type that can fail
		status = http.StatusInternalServerError
		buf.WriteString(`{"error":"the answer cannot be written"}`)
	}
	buf.WriteByte('\n')
	w.Header()["Content-Type"] = isOf
	w.WriteHeader(status)
	_, _ = w.Write(buf.Bytes()) // its client may have gone
}

// fault is an answer to a request that cannot be carried out, in one line, and what to do about it.
type fault struct {
	status int
	Text   string `json:"error"`
	Try    string `json:"try,omitzero"`
}

func (f *fault) Error() string { return f.Text }

// fail answers with an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	f, is := errors.AsType[*fault](err)
	if !is {
		f = faultOf(err)
	}
	switch f.status {
	case http.StatusServiceUnavailable:
		w.Header().Set(retryAfter, "1")
	case http.StatusInternalServerError:
		h.cfg.Logger.ErrorContext(r.Context(), "cannot answer a request", "path", r.URL.Path, "error", err)
	}
	write(w, f.status, f)
}

// faultOf puts an error of the limiter into an answer. An error of Redis stays with the log of the limiter.
func faultOf(err error) *fault {
	text := strings.TrimPrefix(err.Error(), "throttle: ")
	switch {
	case errors.Is(err, throttle.ErrUnavailable):
		return &fault{http.StatusServiceUnavailable, "Redis does not answer, and a rule of the scope is closed then", "again in a second"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &fault{http.StatusServiceUnavailable, "the request ended before it was decided", "again"}
	case errors.Is(err, throttle.ErrGrantNotFound):
		return &fault{http.StatusNotFound, "no reservation or lease of the scope is kept under this id", "the scope and id of one of your own that was not refunded, within its keep"}
	case errors.Is(err, throttle.ErrLeaseLost):
		return &fault{http.StatusGone, "the lease is lost: it was not renewed in time, or was released", "stop the run, and take a new lease"}
	case errors.As(err, new(*policy.UnmatchedError)):
		return &fault{http.StatusNotFound, text, "worker limits show, which lists the scopes"}
	case errors.As(err, new(*policy.AppError)):
		return &fault{http.StatusForbidden, text, ""}
	case errors.As(err, new(*policy.ScopeError)):
		return &fault{http.StatusBadRequest, text, `"scope": "payments/acme"`}
	case strings.HasPrefix(err.Error(), "throttle: "): // a cost or an id
		return &fault{http.StatusBadRequest, text, ""}
	}
	return &fault{http.StatusInternalServerError, "the server cannot answer", "its log"}
}
