package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

func sumOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

func clientsOf(t *testing.T, text string) *Clients {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clients.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	c, err := LoadClients(path)
	must(t, err)
	return c
}

// A client uses its scopes and what is below them, by each path, and nothing else: rights come before anything is read of others.
func TestScopesOfClients(t *testing.T) {
	t.Parallel()
	a := newAPI(t, clientsOf(t, "clients:\n  billing: {sha256: "+sumOf("bill")+", scopes: [pay/a, \"keys\"]}\n  every: {sha256: "+sumOf("all")+", scopes: [\"*\"]}\n"))
	bodies := map[string]string{
		"decide": `{"scope":"S"}`, "reserve": `{"scope":"S","id":"x"}`, "lease": `{"scope":"S","id":"y"}`, "renew": `{"scope":"S","id":"y"}`, "release": `{"scope":"S","id":"y"}`,
		"settle": `{"scope":"S","id":"x","cost":{"requests":1}}`, "refund": `{"scope":"S","id":"x"}`, "report": `{"scope":"S","status":200}`,
	}
	for scope, may := range map[string]bool{"pay/a": true, "pay/a/b": true, "keys/z": true, "pay": false, "pay/ab": false, "pay/b": false, "llm": false, "PAY/a": false} {
		for path, body := range bodies {
			a.token = "bill"
			status, answer, _ := a.ask(path, strings.Replace(body, "S", scope, 1))
			if (status == http.StatusForbidden) == may || status == http.StatusUnauthorized {
				t.Errorf("%s of %s: %d %v", path, scope, status, answer)
			}
			a.token = "all"
			if status, answer, _ := a.ask(path, strings.Replace(body, "S", scope, 1)); status == http.StatusForbidden {
				t.Errorf("%s of %s by a client of all: %d %v", path, scope, status, answer)
			}
		}
	}
	for _, token := range []string{"", "wrong", "bil", sumOf("bill"), "bill2"} {
		a.token = token
		for _, path := range []string{"decide", "nothing"} {
			status, answer, header := a.ask(path, `{"scope":"pay/a"}`)
			if status != http.StatusUnauthorized && path == "decide" || header.Get("WWW-Authenticate") == "" || token != "" && strings.Contains(answer["error"].(string)+answer["try"].(string), token) {
				t.Errorf("token %q: %d %v", token, status, answer)
			}
		}
	}
}

// An id is a client's own: others that share the scope neither settle what it names, nor are answered with its grant.
func TestIDsAreTheClientsOwn(t *testing.T) {
	t.Parallel()
	a := newAPI(t, clientsOf(t, "clients:\n  a: {sha256: "+sumOf("a")+", scopes: [llm, runs]}\n  b: {sha256: "+sumOf("b")+", scopes: [llm, runs]}\n"))
	a.token = "a"
	id := strings.Repeat("x", maxID)
	a.wants("reserve", `{"scope":"llm","id":"`+id+`","cost":{"tokens":600}}`, 200, `{"remaining":400,"id":"`+id+`"}`)
	a.wants("lease", `{"scope":"runs","id":"`+id+`"}`, 200, `{}`)
	a.token = "b"
	for path, body := range map[string]string{
		"settle": `{"scope":"llm","id":"` + id + `","cost":{"tokens":1}}`, "refund": `{"scope":"llm","id":"` + id + `"}`, "report": `{"scope":"llm","status":200,"id":"` + id + `"}`,
		"renew": `{"scope":"runs","id":"` + id + `"}`, "release": `{"scope":"runs","id":"` + id + `"}`,
	} {
		a.wants(path, body, 404, `{}`)
	}
	a.wants("reserve", `{"scope":"llm","id":"`+id+`","cost":{"tokens":300}}`, 200, `{"remaining":100}`)
	a.wants("refund", `{"scope":"llm","id":"`+id+`"}`, 200, `{}`)
	a.token = "a"
	a.wants("settle", `{"scope":"llm","id":"`+id+`","cost":{"tokens":100}}`, 200, `{"rules":[{"rule":"tokens","rule_scope":"llm","unit":"tokens","spent":100,"back":500}]}`)
	a.wants("renew", `{"scope":"runs","id":"`+id+`"}`, 200, `{}`)
}

// A changed file counts, and one with an error does not.
func TestClientsAreReadAgain(t *testing.T) {
	t.Parallel()
	c := clientsOf(t, "clients: {a: {sha256: "+sumOf("a")+", scopes: [pay]}}")
	go c.Follow(t.Context(), slog.New(slog.DiscardHandler))
	has := func(token string) bool { return c.Of("bearer "+token, nil) != nil }
	must(t, os.WriteFile(c.path, []byte("clients: {b: {sha256: "+sumOf("b")+", scopes: [pay]}}"), 0o600))
	redistest.WaitFor(t, "the new token to count", 20*time.Second, func() bool { return has("b") && !has("a") })
	must(t, os.WriteFile(c.path, []byte("clients: {b: {sha256: 12, scopes: [pay]}}"), 0o600))
	if err := c.read(); err == nil || !has("b") {
		t.Errorf("%v, %v", err, has("b"))
	}
}

func TestFaultsOfClients(t *testing.T) {
	t.Parallel()
	good := "sha256: " + sumOf("a")
	for text, want := range map[string]string{
		``:                                "empty",
		`clients: {}`:                     "there are no clients",
		`tokens: {a: {}}`:                 "write clients",
		`clients: {a: {scopes: [pay]}}`:   "neither sha256 nor certificate",
		`clients: {a: {` + good + `}}`:    "has no scopes",
		`clients: {a: {sha256: beef}}`:    "no SHA-256",
		`clients: {a: {scope: [pay]}}`:    "did you mean scopes?",
		`clients: {a: {scopes: pay}}`:     "a list",
		`clients: {a: {scopes: [pay//]}}`: "which is no scope",
		`clients: [a]`:                    "names under it",
	} {
		if _, err := parseClients("clients.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "clients.yaml") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// certificateOf returns a certificate of a client with a DNS name and a URI, which it has signed itself.
func certificateOf(t *testing.T, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{name}, URIs: []*url.URL{{Scheme: "spiffe", Host: name, Path: "/gateway"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// writeCertificate writes a certificate and its key, in PEM.
func writeCertificate(t *testing.T, of tls.Certificate, cert, key string) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(of.PrivateKey)
	must(t, err)
	must(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: of.Certificate[0]}), 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

// A certificate that was renewed is used from then on, and files that do not fit each other are not.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	writeCertificate(t, certificateOf(t, "first.test"), cert, key)
	c, err := LoadCertificate(cert, key)
	must(t, err)
	config, err := c.Config("")
	must(t, err)
	names := func() string {
		pair, err := config.GetCertificate(nil)
		must(t, err)
		return pair.Leaf.DNSNames[0]
	}
	if names() != "first.test" {
		t.Error(names())
	}
	go c.Follow(t.Context(), slog.New(slog.DiscardHandler))
	writeCertificate(t, certificateOf(t, "second.test"), cert, key)
	redistest.WaitFor(t, "the new certificate to be used", 20*time.Second, func() bool { return names() == "second.test" })
	must(t, os.WriteFile(key, []byte("-----BEGIN"), 0o600))
	if err := c.read(); err == nil || names() != "second.test" {
		t.Errorf("%v, %s", err, names())
	}
	if _, err := c.Config(key); err == nil || !strings.Contains(err.Error(), "has no certificate") {
		t.Error(err)
	}
}

// mTLS: a certificate that the server has verified names the client. One of another authority, or of no client, does not.
func TestCertificates(t *testing.T) {
	t.Parallel()
	gateway, named, other, stranger := certificateOf(t, "gateway.test"), certificateOf(t, "named.test"), certificateOf(t, "other.test"), certificateOf(t, "gateway.test")
	a := newAPI(t, clientsOf(t, "clients:\n  gateway: {certificate: gateway.test, scopes: [pay]}\n  named: {certificate: \"spiffe://named.test/gateway\", scopes: [llm]}\n"))
	server := httptest.NewUnstartedServer(a.h)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	pool := x509.NewCertPool()
	for _, c := range []tls.Certificate{gateway, named, other} {
		pool.AddCert(c.Leaf)
	}
	server.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	server.StartTLS()
	defer server.Close()
	for name, row := range map[string]struct {
		cert          *tls.Certificate
		scope, bearer string
		status        int // 0: no handshake
	}{
		"its scope":            {&gateway, "pay/a", "", 200},
		"another's":            {&gateway, "llm", "", 403},
		"by its URI":           {&named, "llm", "", 200},
		"of no client":         {&other, "pay/a", "", 401},
		"none":                 {nil, "pay/a", "", 401},
		"beside a wrong token": {&gateway, "pay/a", "wrong", 401},
		"of another authority": {&stranger, "pay/a", "", 0},
	} {
		base := server.Client().Transport.(*http.Transport).Clone()
		if row.cert != nil {
			base.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return row.cert, nil }
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/decide", strings.NewReader(`{"scope":"`+row.scope+`"}`))
		must(t, err)
		r.Header.Set("Content-Type", "application/json")
		if row.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+row.bearer)
		}
		resp, err := (&http.Client{Transport: base}).Do(r)
		status := 0
		if err == nil {
			status = resp.StatusCode
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		if status != row.status {
			t.Errorf("%s: %d %v", name, status, err)
		}
		base.CloseIdleConnections()
	}
}
