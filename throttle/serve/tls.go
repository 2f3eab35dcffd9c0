package serve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/headway-go/headway/internal/filewatch"
)

// Certificate is a server's certificate and its key, of two files in PEM. It is safe for concurrent use.
type Certificate struct {
	cert, key string
	pair      atomic.Pointer[tls.Certificate]
}

// LoadCertificate reads a certificate and its key.
func LoadCertificate(cert, key string) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key}
	return c, c.read()
}

func (c *Certificate) read() error {
	pair, err := tls.LoadX509KeyPair(c.cert, c.key)
	if err == nil {
		c.pair.Store(&pair)
	}
	return err
}

// Follow reads the files again when one of them has changed, until ctx ends. New connections get the new certificate. Files that do not fit
// each other leave the certificate as it was.
func (c *Certificate) Follow(ctx context.Context, log *slog.Logger) {
	var files sync.WaitGroup
	for _, path := range []string{c.cert, c.key} {
		files.Go(func() {
			for range filewatch.Changes(ctx, path) {
				if err := c.read(); err != nil {
					log.WarnContext(ctx, "serve: the new certificate cannot be used; the one from before still is", "file", path, "error", err.Error())
				}
			}
		})
	}
	files.Wait()
}

// Config returns how to serve TLS with the certificate, to clients with a certificate of the authorities in a file of PEM and to those
// without one; with no file only to those.
func (c *Certificate) Config(clientCA string) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.pair.Load(), nil },
	}
	if clientCA == "" {
		return config, nil
	}
	text, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, err
	}
	config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", clientCA)
	}
	return config, nil
}
