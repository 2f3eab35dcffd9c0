package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
)

const (
	tokenVariable = "HEADWAY_LISTEN_TOKEN"
	minToken      = 16
	loopback      = "127.0.0.1"
)

// listenAddr is where /healthz and /metrics are served, and for whom.
type listenAddr struct {
	addr     string // host:port; "" when off
	loopback bool   // only this machine reaches it
	token    string // what callers must send; "" for none
}

// parseListen is parseAddr, and refuses an address that other machines reach unless there is a token.
func parseListen(addr, token string) (listenAddr, error) {
	if addr == "" {
		return listenAddr{}, nil
	}
	l, err := parseAddr(addr)
	if err != nil {
		return l, err
	}
	l.token = token
	_, port, _ := net.SplitHostPort(l.addr)
	switch {
	case token != "" && len(token) < minToken:
		return listenAddr{}, shortToken(token)
	case !l.loopback && token == "":
		return listenAddr{}, cli.Errorf(tokenVariable+"=$(openssl rand -hex 16) worker …, or -listen :"+port+" for this machine only",
			"-listen %s can be reached by other machines, and %s is not set", addr, tokenVariable)
	}
	return l, nil
}

func shortToken(token string) error {
	return cli.Errorf(tokenVariable+"=$(openssl rand -hex 16) worker …", "%s has %d characters; %d are needed", tokenVariable, len(token), minToken)
}

// parseAddr makes ":9090" mean 127.0.0.1:9090.
func parseAddr(addr string) (listenAddr, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return listenAddr{}, cli.Errorf("-listen :9090 or -listen HOST:9090", "-listen %q is not HOST:PORT", addr)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return listenAddr{}, cli.Errorf("-listen :9090", "-listen %q: the port is not a number from 0 to 65535", addr)
	}
	if host == "" {
		host = loopback
	}
	return listenAddr{addr: net.JoinHostPort(host, port), loopback: isLoopback(host)}, nil
}

// isLoopback reports whether host is a name or address of this machine that
// no other reaches. A name that happens to resolve to one does not count.
func isLoopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// guard refuses requests that may not see h.
func (l listenAddr) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		switch {
		case l.loopback && !isLoopback(hostOf(r)):
			// A web page whose name was made to resolve to 127.0.0.1 asks with that name.
			http.Error(w, "this address is for this machine only: ask for localhost or 127.0.0.1", http.StatusMisdirectedRequest)
		case !l.admits(r.Header.Get("Authorization")):
			w.Header().Set("WWW-Authenticate", `Bearer realm="worker"`)
			http.Error(w, "send the header Authorization: Bearer TOKEN, with the worker's "+tokenVariable, http.StatusUnauthorized)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

func hostOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.Host); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(r.Host, "["), "]")
}

// admits compares in a time that does not depend on the token.
func (l listenAddr) admits(authorization string) bool {
	if l.token == "" {
		return true
	}
	scheme, given, _ := strings.Cut(authorization, " ")
	a, b := sha256.Sum256([]byte(strings.TrimSpace(given))), sha256.Sum256([]byte(l.token))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// open listens at -listen, and returns nil if that is off. shown is the page, nil for none, which has access rules of its
// own. It answers nothing before serve is called.
func (l listenAddr) open(h *health, metrics, shown http.Handler, log *slog.Logger) (*statusServer, error) {
	if l.addr == "" {
		return nil, nil
	}
	ln, err := net.Listen("tcp", l.addr)
	if err != nil {
		return nil, listenError(err, l.addr, "-listen", "another worker? -listen another port, or stop what listens there")
	}
	return &statusServer{ln: ln, srv: newServer(beside(l.guard(statusHandler(h, metrics)), shown), log)}, nil
}

// newServer returns a server of which a slow client keeps no connection.
func newServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// beside adds the page, unless it is nil, to h. The page then answers for the root too, with a redirect that has the
// page's headers.
func beside(h, shown http.Handler) http.Handler {
	if shown == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case path == pagePath || strings.HasPrefix(path, pagePath+"/"):
			shown.ServeHTTP(w, r)
		case path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead):
			to := *r.URL
			to.Path, to.RawPath = pagePath, ""
			root := r.WithContext(r.Context())
			root.URL = &to
			shown.ServeHTTP(w, root)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

type statusServer struct {
	ln  net.Listener
	srv *http.Server
}

func (s *statusServer) addr() string { return s.ln.Addr().String() }

// serve returns when close was called.
func (s *statusServer) serve() error { return s.srv.Serve(s.ln) }

// close ends open requests too: a scrape is not waited for. A nil server is off.
func (s *statusServer) close() {
	if s != nil {
		_ = s.srv.Close()
		_ = s.ln.Close() // if it was not served yet
	}
}

// listenError explains that what, such as a flag, cannot listen on addr.
func listenError(err error, addr, what, tryInUse string) error {
	host, port, _ := net.SplitHostPort(addr)
	why, try := err.Error(), ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why, try = "the port is in use", tryInUse
	case errors.Is(err, syscall.EACCES):
		why, try = "no permission for port "+port, "a port from 1024 up"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why, try = "this machine does not have the address "+host, "an address of this machine (ip addr lists them)"
	case errors.As(err, new(*net.DNSError)):
		why, try = "no address is known for "+host, "an IP address of this machine"
	}
	return &cli.Error{What: what + " cannot listen on " + addr + ": " + why, Try: try, Err: err}
}
