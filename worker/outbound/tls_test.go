package outbound

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	proto := make(chan string, 1)
	start := func(t *testing.T, cfg *tls.Config) *httptest.Server {
		t.Helper()
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto <- r.Proto }))
		s.EnableHTTP2 = true
		s.TLS = cfg
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	modern := start(t, &tls.Config{})
	roots := x509.NewCertPool()
	roots.AddCert(modern.Certificate())

	t.Run("HTTP/1.1 to a server that offers HTTP/2", func(t *testing.T) {
		must(t, run(t, handler(t, Config{}, seams{roots: roots}), payload{URL: modern.URL}))
		if got := <-proto; got != "HTTP/1.1" {
			t.Errorf("spoke %s", got)
		}
	})
	t.Run("unknown authority", func(t *testing.T) {
		err := run(t, handler(t, Config{}, seams{}), payload{URL: modern.URL})
		wantPermanent(t, err, false)
		var cert *tls.CertificateVerificationError
		if !errors.As(err, &cert) || !strings.Contains(err.Error(), "x509") {
			t.Error(err)
		}
	})
	t.Run("name with a trailing dot", func(t *testing.T) {
		_, port, _ := net.SplitHostPort(modern.Listener.Addr().String())
		h := handler(t, Config{AllowHosts: []string{"example.com"}}, seams{roots: roots, resolver: resolves("127.0.0.1")})
		must(t, run(t, h, payload{URL: "https://Example.com.:" + port}))
		<-proto
	})
	t.Run("wrong name", func(t *testing.T) {
		_, port, _ := net.SplitHostPort(modern.Listener.Addr().String())
		h := handler(t, Config{AllowHosts: []string{"wrong.test"}}, seams{roots: roots, resolver: resolves("127.0.0.1")})
		err := run(t, h, payload{URL: "https://wrong.test:" + port})
		var cert *tls.CertificateVerificationError
		if !errors.As(err, &cert) {
			t.Error(err)
		}
	})
	t.Run("TLS 1.1", func(t *testing.T) {
		old := start(t, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
		err := run(t, handler(t, Config{}, seams{roots: roots}), payload{URL: old.URL})
		wantPermanent(t, err, false)
		if !strings.Contains(err.Error(), "protocol version") {
			t.Error(err)
		}
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		var version uint16
		h := handler(t, Config{}, seams{roots: roots, tls: func(s *tls.ConnectionState) { version = s.Version }})
		old := start(t, &tls.Config{MaxVersion: tls.VersionTLS12})
		if err := run(t, h, payload{URL: old.URL}); err != nil || version != tls.VersionTLS12 {
			t.Errorf("err = %v, version %x", err, version)
		}
		<-proto
	})
}

func TestNoProxyNoHTTP2(t *testing.T) {
	t.Parallel()
	tr := handler(t, Config{}, seams{}).transport
	if tr.Proxy != nil {
		t.Error("a proxy would dial for us, behind the address guard")
	}
	if tr.Protocols.HTTP2() || tr.Protocols.UnencryptedHTTP2() || tr.TLSNextProto == nil || len(tr.TLSNextProto) != 0 || tr.ForceAttemptHTTP2 {
		t.Error("HTTP/2 is on")
	}
	if !tr.DisableCompression {
		t.Error("compression is on")
	}
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// "A malformed context is not sent."
func TestTraceContext(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ parent, state, wantParent, wantState string }{
		"none":          {"", "", "", ""},
		"both":          {parent, "vendor=1", parent, "vendor=1"},
		"without state": {parent, "", parent, ""},
		"state alone":   {"", "vendor=1", "", ""},
		"long state":    {parent, "a=" + strings.Repeat("a", 254) + ",b=" + strings.Repeat("a", 254), parent, ""},
		"no state":      {parent, "of no vendor", parent, ""},
		"later version": {"01" + parent[2:] + "-more", "", "01" + parent[2:] + "-more", ""},
		"upper case":    {strings.ToUpper(parent), "", "", ""},
		"no trace":      {"00-" + strings.Repeat("0", 32) + parent[35:], "", "", ""},
		"injected":      {parent + "\r\nX-Evil: 1", "", "", ""},
	} {
		header := http.Header{}
		TraceContext(t.Context(), asynq.NewTaskWithHeaders("http", nil, map[string]string{"traceparent": tt.parent, "tracestate": tt.state}), header)
		if header.Get("Traceparent") != tt.wantParent || header.Get("Tracestate") != tt.wantState {
			t.Errorf("%s: %v", name, header)
		}
	}
}

// "A header that the task itself names stays as it is."
func TestHeadersAreAdded(t *testing.T) {
	t.Parallel()
	got := make(chan *http.Request, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r }))
	defer s.Close()
	h := handler(t, Config{Headers: func(ctx context.Context, t *asynq.Task, header http.Header) {
		TraceContext(ctx, t, header)
		header["x-tenant"] = []string{"of the hook"}
		header["Host"] = []string{"elsewhere.example"}
		header["Transfer-Encoding"] = []string{"chunked"}
		header["X-Broken"] = []string{"a\r\nb: c"}
		header["X-None"] = nil
	}}, seams{})
	plain := task(t, payload{URL: s.URL, Headers: map[string]string{"X-Tenant": "acme"}})
	traced := asynq.NewTaskWithHeaders(plain.Type(), plain.Payload(), map[string]string{"traceparent": parent})
	must(t, h.ProcessTask(t.Context(), traced))
	r := <-got
	if r.Header.Get("Traceparent") != parent || r.Header.Get("X-Tenant") != "acme" || r.Host != s.Listener.Addr().String() ||
		len(r.TransferEncoding) != 0 || r.Header["X-Broken"] != nil || r.Header["X-None"] != nil {
		t.Errorf("%s %v", r.Host, r.Header)
	}
}
