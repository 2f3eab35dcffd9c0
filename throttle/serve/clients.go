package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/filewatch"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// Clients are the programs that may ask, of one file. It is safe for concurrent use.
type Clients struct {
	path string
	list atomic.Pointer[[]Client]
}

// Client is a program that may ask.
type Client struct {
	Name string
	// Scopes are those that it may use, each with all below it, such as payments or tenants/*/llm.
	Scopes []string

	sum         []byte // SHA-256 of its token; nil for none
	certificate string // a DNS name or URI of its certificate; "" for none
}

// LoadClients reads a file of clients:
//
//	clients:
//	  billing: {sha256: 5f16…, scopes: [payments]}
//	  gateway: {certificate: gateway.internal, scopes: ["*"]}
//
// sha256 is that of a token, as worker page token prints it. certificate is a DNS name, or a URI such as that of SPIFFE, of a
// certificate that TLS has verified. The error lists every fault with its line.
func LoadClients(path string) (*Clients, error) {
	c := &Clients{path: path}
	return c, c.read()
}

// Follow reads the file again when it has changed, until ctx ends. A file with an error leaves the clients as they were.
func (c *Clients) Follow(ctx context.Context, log *slog.Logger) {
	for range filewatch.Changes(ctx, c.path) {
		if err := c.read(); err != nil {
			log.WarnContext(ctx, "serve: the file of clients has an error; the clients from before still count", "error", err.Error())
		}
	}
}

func (c *Clients) read() error {
	data, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("serve: read clients: %w", err)
	}
	list, err := parseClients(c.path, data)
	if err == nil {
		c.list.Store(&list)
	}
	return err
}

// Of returns the client with a token, "Bearer TOKEN", or, if given is empty, with a certificate that TLS has verified; nil for none.
func (c *Clients) Of(given string, conn *tls.ConnectionState) (found *Client) {
	list := *c.list.Load()
	if given != "" {
		scheme, token, _ := strings.Cut(given, " ")
		sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
		for i := range list { // all of them, so that the time says nothing
			if subtle.ConstantTimeCompare(list[i].sum, sum[:]) == 1 && strings.EqualFold(scheme, "Bearer") {
				found = &list[i]
			}
		}
		return found
	}
	if conn == nil || len(conn.VerifiedChains) == 0 {
		return nil
	}
	names := namesOf(conn.VerifiedChains[0][0])
	for i := range list {
		if list[i].certificate != "" && slices.Contains(names, list[i].certificate) {
			return &list[i]
		}
	}
	return nil
}

func namesOf(cert *x509.Certificate) []string {
	names := slices.Clone(cert.DNSNames)
	for _, uri := range cert.URIs {
		names = append(names, uri.String())
	}
	return names
}

// May reports whether the client may use a scope.
func (c *Client) May(scope string) bool {
	return slices.ContainsFunc(c.Scopes, func(pattern string) bool { return policy.Within(pattern, scope) })
}

var clientsFormat = strictyaml.Format{TooLong: "give groups of programs one token", Empty: "write clients: and names under it"}

var clientFields = []string{"sha256", "certificate", "scopes"}

type clientReader struct {
	strictyaml.Faults
	out []Client
}

func parseClients(name string, data []byte) ([]Client, error) {
	r := &clientReader{}
	if root := clientsFormat.Read(data, &r.Faults); root != nil {
		for _, f := range r.Named(root, "clients") {
			r.client(f)
		}
		if len(r.out) == 0 && r.None() {
			r.Add(diag.Start, "", "there are no clients, so no program could ask")
		}
	}
	if !r.None() {
		return nil, &policy.Error{Name: name, Faults: r.All()}
	}
	return r.out, nil
}

func (r *clientReader) client(f strictyaml.Field) {
	if !r.Is(f, yaml.MappingNode, f.Path, "its fields under it, "+diag.OneOf(clientFields)) {
		return
	}
	c := Client{Name: f.Name}
	for _, field := range r.Fields(f.Value, f.Path) {
		switch field.Name {
		case "sha256":
			c.sum = r.sum(field)
		case "certificate":
			c.certificate = r.Text(field, "a DNS name or URI of its certificate")
		case "scopes":
			c.Scopes = r.scopes(field)
		default:
			r.Bad(field, field.Path, "is not a field of it; %s", diag.Meant(field.Name, clientFields))
		}
	}
	at := strictyaml.PlaceOf(f.Key)
	if r.None() && c.sum == nil && c.certificate == "" {
		r.Add(at, f.Path, "has neither sha256 nor certificate; write the sha256 that worker page token prints")
	}
	if r.None() && len(c.Scopes) == 0 {
		r.Add(at, f.Path, `has no scopes; write them, such as scopes: [payments], or ["*"] for all`)
	}
	r.out = append(r.out, c)
}

func (r *clientReader) sum(f strictyaml.Field) []byte {
	sum, err := hex.DecodeString(r.Text(f, "the hash of a token"))
	if err == nil && len(sum) != sha256.Size {
		err = errors.New("another length")
	}
	if err != nil {
		r.Bad(f, f.Path, "is no SHA-256 in hex; write the one that worker page token prints")
	}
	return sum
}

func (r *clientReader) scopes(f strictyaml.Field) []string {
	list := r.Texts(f, "[payments]")
	for _, scope := range list {
		if _, err := policy.ParseScope(strings.ReplaceAll(scope, "*", "x")); err != nil {
			r.Bad(f, f.Path, "has %q, which is no scope; write one such as payments", diag.Clip(scope))
		}
	}
	return list
}
