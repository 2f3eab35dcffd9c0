// Package countapi is an outbound API that counts the calls that reach it, so that tests and the demo can judge a limit by what
// arrived at the other side. It answers any method at /v1/SCOPE, with the names of the scope escaped as in any URL. It logs:
//
//   - the arrival of a request: on Linux when its first bytes reached the kernel (SO_TIMESTAMPNS), so that a busy machine does not
//     move it, and elsewhere when they came out of the socket;
//   - its departure, right before the answer is written, so that a call that starts when another has ended never overlaps it. For a
//     call that its caller gave up, it is the moment at which the API noticed;
//   - the task's id and cost, from the headers X-Task-Id and X-Task-Cost: a number, or requests=1,tokens=1500.
//
// A bad request (no scope, a bad cost, an unknown query) is answered 400, and is in the log under its path all the same.
package countapi

import (
	"bufio"
	"cmp"
	"context"
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

// Server is the API. It is safe for concurrent use.
type Server struct {
	epoch    time.Time // with its monotonic reading
	listener net.Listener
	http     *http.Server

	mu        sync.Mutex
	calls     []Call
	scopes    map[string]string // by themselves
	outages   map[string]outage // by scope
	seen      map[string]int    // calls by id and target, of those that fail at first
	succeeded map[string]bool
	out       *bufio.Writer // nil: no log, or closed
	outErr    error
}

// outage is a time in which calls of a scope are answered with 503.
type outage struct{ from, until time.Duration }

// Start starts a Server at addr; "127.0.0.1:0" finds a free port.
func Start(addr string) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("countapi: %w", err)
	}
	return Serve(l, nil), nil
}

// Serve starts a Server at l. Its times count from now. log, unless it is nil, receives the log as NDJSON: a first line with the
// epoch, then each call when it departs; Close writes those that are still open. ReadLog reads it.
func Serve(l net.Listener, log io.Writer) *Server {
	s := &Server{epoch: time.Now(), listener: l, scopes: map[string]string{}, outages: map[string]outage{}, seen: map[string]int{}, succeeded: map[string]bool{}}
	if log != nil {
		s.out = bufio.NewWriter(log)
		s.write(header{Epoch: s.epoch.UTC(), EpochUnixNS: s.epoch.UnixNano()})
	}
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo),
	}
	go func() { _ = s.http.Serve(stampedListener{l, s.now}) }() // ends with Close, and says so
	return s
}

// Addr returns the host:port at which the API listens.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// URL returns the address of a scope, such as http://127.0.0.1:18080/v1/payments/acme/refunds.
func (s *Server) URL(scope string) string { return "http://" + s.Addr() + Path(scope) }

// Epoch returns the wall clock at the moment from which calls' times count.
func (s *Server) Epoch() time.Time { return s.epoch }

// Log returns every call so far in order of arrival.
func (s *Server) Log() []Call {
	s.mu.Lock()
	calls := slices.Clone(s.calls)
	s.mu.Unlock()
	sortCalls(calls)
	return calls
}

// Since returns the calls after the first n, in the order in which they were noted.
func (s *Server) Since(n int) []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls[n:])
}

// Fail has the API answer the calls of a scope that arrive from one time since the epoch until another with 503. It replaces what
// the last Fail said of the scope.
func (s *Server) Fail(scope string, from, until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outages[scope] = outage{from, until}
}

// Counts returns the number of calls so far and of task ids that were answered with a 2xx.
func (s *Server) Counts() (calls, succeeded int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls), len(s.succeeded)
}

// Close completes the log, stops listening and ends open connections. It returns the first error of writing the log.
func (s *Server) Close() error {
	s.closeLog()
	return errors.Join(s.outErr, s.http.Close())
}

func (s *Server) closeLog() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.Departed == Open {
			s.write(c)
		}
	}
	if s.out != nil && s.outErr == nil {
		s.outErr = s.out.Flush()
	}
	s.out = nil
}

// serve counts a request and answers it.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	arrived := s.now()
	conn, _ := r.Context().Value(connKey{}).(*stampedConn)
	if at, ok := conn.take(); ok {
		arrived = at
	}
	call, how, fault := parse(r)
	call.Arrived, call.Departed = arrived, Open
	status := s.arrive(&call, r.URL, how)

	// The body is read to its end, so that the next byte from the connection is the next request's.
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, bodyLimit)); err != nil {
		fault = errors.Join(fault, err)
	}
	conn.take()
	if fault != nil {
		w.Header().Set("Connection", "close")
		s.depart(call, http.StatusBadRequest)
		http.Error(w, "countapi: "+fault.Error(), http.StatusBadRequest)
		return
	}
	if !s.linger(r, arrived+how.latency) {
		s.depart(call, StatusGone)
		return
	}
	if status == how.fail && how.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(how.retryAfter))
	}
	s.depart(call, status)
	w.WriteHeader(status)
}

// now returns the time since the epoch by the monotonic clock, never 0.
func (s *Server) now() time.Duration { return max(1, time.Since(s.epoch)) }

// parse reads a request. The Call is filled as far as it goes, also with an error.
func parse(r *http.Request) (Call, answer, error) {
	// Cloned: a value of a header keeps all of them in memory.
	call := Call{ID: strings.Clone(r.Header.Get("X-Task-Id")), Cost: 1}
	scope, err := scopeOf(r.URL)
	if err != nil {
		call.Scope = strings.TrimPrefix(r.URL.EscapedPath(), "/v1/")
		return call, answer{}, err
	}
	call.Scope = scope
	if text := r.Header.Get("X-Task-Cost"); text != "" {
		if err := call.setCost(text); err != nil {
			return call, answer{}, err
		}
	}
	how, err := answerOf(r.URL.RawQuery)
	return call, how, err
}

// arrive logs the call and returns the status of its answer, which may depend on when it comes, or on whether it is the first of its
// id to this target.
func (s *Server) arrive(call *Call, target *url.URL, how answer) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	call.Seq = int64(len(s.calls)) + 1
	if known, ok := s.scopes[call.Scope]; ok {
		call.Scope = known // its text is kept once
	} else {
		s.scopes[call.Scope] = call.Scope
	}
	s.calls = append(s.calls, *call)
	if o := s.outages[call.Scope]; call.Arrived >= o.from && call.Arrived < o.until {
		return http.StatusServiceUnavailable
	}
	if how.fail != 0 {
		key := call.ID + " " + target.String()
		if s.seen[key]++; s.seen[key] == 1 {
			return how.fail
		}
	}
	return http.StatusOK
}

// depart completes the call's line in the log.
func (s *Server) depart(call Call, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &s.calls[call.Seq-1]
	c.Departed, c.Status = max(s.now(), c.Arrived), status
	if c.Succeeded() {
		s.succeeded[c.ID] = true
	}
	s.write(*c)
}

// write adds a line to the log; the first error stays.
func (s *Server) write(line any) {
	if s.out == nil || s.outErr != nil {
		return
	}
	text, err := json.Marshal(line)
	if err == nil {
		_, err = s.out.Write(append(text, '\n'))
	}
	s.outErr = err
}

// linger waits until the given time since the epoch, and reports whether the caller waited too.
func (s *Server) linger(r *http.Request, until time.Duration) bool {
	d := until - s.now()
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
