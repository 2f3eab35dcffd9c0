// Package countapi is an outbound API that counts what arrives at it, so that
// tests and the demo can hold a limit against what really reached the other
// side. It answers any method at /v1/<scope>, with the names of the scope
// escaped as in any URL, and logs for each request:
//
//   - its arrival, which on Linux is when its first bytes reached the kernel (SO_TIMESTAMPNS): a
//     machine that is too busy to run the API does not move it. Elsewhere it is when they come out of the socket (by
//     a wrapped net.Conn: nothing of net/http has run by then). A request that
//     comes another way, such as through httptest.NewRecorder, is stamped by the
//     first statement of the handler;
//   - its departure, which is taken right before its answer is handed to the
//     socket. The caller cannot have the answer any earlier, so a call that
//     starts when another has ended is never seen to overlap it. Of a call that
//     its caller gave up, it is the moment when the API noticed;
//   - the task's id and cost, from the headers X-Task-Id and X-Task-Cost, which is a
//     number, or one for each unit: requests=1,tokens=1500.
//
// A bad request (a path that is no scope, a cost that is no number above zero,
// an unknown query) is answered 400, and counted under its path all the same:
// whatever arrives is in the log.
package countapi

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// StatusGone is the Status of a call whose caller left before the answer.
const StatusGone = 499

// bodyLimit is how much of a request's body is read before it is refused.
const bodyLimit = 16 << 20

// Config is how an API is set up.
type Config struct {
	// Log receives the log as NDJSON: a first line with the epoch, then each
	// call when it departs; those still open are written by Close. ReadLog reads
	// it. Defaults to none.
	Log io.Writer
}

// API is the handler and its log. It is safe for concurrent use.
type API struct {
	epoch time.Time // with its monotonic reading

	mu        sync.Mutex
	calls     []Call
	scopes    map[string]string // by themselves
	seen      map[string]int    // calls by id and target, of those that fail at first
	succeeded map[string]bool
	out       *bufio.Writer
	outErr    error
	closed    bool
}

// New returns an API whose times count from now.
func New(cfg Config) *API {
	a := &API{
		epoch:     time.Now(),
		scopes:    map[string]string{},
		seen:      map[string]int{},
		succeeded: map[string]bool{},
	}
	if cfg.Log != nil {
		a.out = bufio.NewWriter(cfg.Log)
		a.write(header{Epoch: a.epoch.UTC(), EpochUnixNS: a.epoch.UnixNano()})
	}
	return a
}

// Epoch returns the wall clock at the moment from which calls' times count.
func (a *API) Epoch() time.Time { return a.epoch }

// Log returns every call so far in order of arrival.
func (a *API) Log() []Call {
	a.mu.Lock()
	calls := slices.Clone(a.calls)
	a.mu.Unlock()
	sortCalls(calls)
	return calls
}

// Since returns the calls that were logged after the first n, in the order of
// their Seq, for those who follow the log while it grows. Calls that are still
// open are among them and are not told again.
func (a *API) Since(n int) []Call {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls[min(n, len(a.calls)):])
}

// Counts returns the number of calls so far and of task ids that were answered
// with a 2xx. It costs the same however long the log is.
func (a *API) Counts() (calls, succeeded int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls), len(a.succeeded)
}

// ServeHTTP counts the request and answers it.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrived := a.now()
	conn := connOf(r.Context())
	if conn != nil {
		if at, ok := conn.take(); ok {
			arrived = at
		}
	}
	call, how, fault := a.parse(r)
	call.Arrived, call.Departed = arrived, Open
	n := a.arrive(&call, r.URL, how)

	// The body is read to its end, so that the next byte from the connection is
	// the next request's.
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, bodyLimit)); err != nil {
		fault = errors.Join(fault, err)
	}
	if conn != nil {
		conn.take()
	}
	if fault != nil {
		w.Header().Set("Connection", "close")
		a.depart(call, http.StatusBadRequest)
		http.Error(w, "countapi: "+fault.Error(), http.StatusBadRequest)
		return
	}
	if !a.linger(r, arrived+how.Latency) {
		a.depart(call, StatusGone)
		return
	}
	status := how.status(n)
	if how.RetryAfter > 0 && (status < 200 || status > 299) {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((how.RetryAfter+time.Second-1)/time.Second), 10))
	}
	a.depart(call, status)
	w.WriteHeader(status)
}

// Close writes the calls that are still open to the log and returns the first
// error of writing it. Calls that arrive later are kept in memory only.
func (a *API) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return a.outErr
	}
	for _, c := range a.calls {
		if c.Departed == Open {
			a.write(c)
		}
	}
	a.closed = true
	if a.out != nil && a.outErr == nil {
		a.outErr = a.out.Flush()
	}
	return a.outErr
}

// now is the time since the epoch by the monotonic clock, never 0.
func (a *API) now() time.Duration { return max(1, time.Since(a.epoch)) }

// parse reads what the request says about itself. The Call is filled as far as
// it goes in any case.
func (a *API) parse(r *http.Request) (Call, Answer, error) {
	// Cloned: a value of a header keeps all of them in memory.
	call := Call{ID: strings.Clone(r.Header.Get("X-Task-Id")), Cost: 1}
	scope, err := scopeOf(r.URL)
	if err != nil {
		call.Scope = strings.TrimPrefix(r.URL.EscapedPath(), "/v1/")
		return call, Answer{}, err
	}
	call.Scope = scope
	if text := r.Header.Get("X-Task-Cost"); text != "" {
		if err := call.price(text); err != nil {
			return call, Answer{}, err
		}
	}
	how, err := answerOf(r.URL.RawQuery)
	return call, how, err
}

// arrive logs the call and returns how many its id has made to this target, where its answer
// depends on that.
func (a *API) arrive(call *Call, target *url.URL, how Answer) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	call.Seq = int64(len(a.calls)) + 1
	if known, ok := a.scopes[call.Scope]; ok {
		call.Scope = known // its text is kept once
	} else {
		a.scopes[call.Scope] = call.Scope
	}
	a.calls = append(a.calls, *call)
	if how.Fail == 0 && how.Times == 0 {
		return 1
	}
	key := call.ID + " " + target.String()
	a.seen[key]++
	return a.seen[key]
}

// depart completes the call's line in the log.
func (a *API) depart(call Call, status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &a.calls[call.Seq-1]
	c.Departed, c.Status = max(a.now(), c.Arrived), status
	if c.Succeeded() {
		a.succeeded[c.ID] = true
	}
	a.write(*c)
}

// write adds a line to the log; the first error stays.
func (a *API) write(line any) {
	if a.out == nil || a.closed || a.outErr != nil {
		return
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = a.out.Write(append(text, '\n'))
	}
	a.outErr = err
}

// linger waits until the given time since the epoch and says whether the caller
// waited too.
func (a *API) linger(r *http.Request, until time.Duration) bool {
	d := until - a.now()
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func sortCalls(calls []Call) {
	slices.SortFunc(calls, func(x, y Call) int {
		return cmp.Or(cmp.Compare(x.Arrived, y.Arrived), cmp.Compare(x.Seq, y.Seq))
	})
}

// Server is an API that listens.
type Server struct {
	*API
	listener net.Listener
	http     *http.Server
	served   chan struct{}
}

// Start serves a new API at addr; "127.0.0.1:0" finds a free port.
func Start(addr string, cfg Config) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("countapi: %w", err)
	}
	return Serve(l, cfg), nil
}

// Serve serves a new API at l until Close.
func Serve(l net.Listener, cfg Config) *Server {
	s := &Server{API: New(cfg), listener: l, served: make(chan struct{})}
	s.http = &http.Server{
		Handler:           s.API,
		ConnContext:       withConn,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
	}
	go func() {
		defer close(s.served)
		_ = s.http.Serve(stampedListener{l, s.now}) // ends with Close, and says so
	}()
	return s
}

// Addr returns the host:port at which the API listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL returns the address of a scope, such as
// http://127.0.0.1:18080/v1/payments/acme/refunds
func (s *Server) URL(scope string) string { return "http://" + s.Addr() + Path(scope) }

// Close stops listening, ends open connections and completes the log.
func (s *Server) Close() error {
	err := s.http.Close()
	<-s.served
	return errors.Join(err, s.API.Close())
}
