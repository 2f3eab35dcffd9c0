package main

import (
	"errors"
	"os"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/events"
)

const (
	secretVariable = "HEADWAY_EVENTS_SECRET"
	makeSecret     = secretVariable + "=$(openssl rand -hex 16) worker …"
	mostSecret     = 4096 // bytes of a file: a larger one is no secret
)

// givenEvents is what the flags say of events.
type givenEvents struct {
	log        bool
	webhook    string // URL
	secretFile string
}

// build returns what reports events, nil for none. The error holds neither the secret nor the URL's path.
func (g givenEvents) build(secret string, allowHosts []string) (worker.Events, error) {
	if g.webhook == "" {
		if g.secretFile != "" {
			return nil, cli.Errorf("-events-webhook https://example.com/hooks", "-events-secret-file is given without -events-webhook")
		}
		if !g.log {
			return nil, nil
		}
		return events.New(events.Config{})
	}
	secret, err := g.secret(secret)
	if err != nil {
		return nil, err
	}
	built, err := events.New(events.Config{Webhook: &events.Webhook{URL: g.webhook, Secret: secret, AllowHosts: allowHosts}})
	if err != nil {
		what := strings.ReplaceAll(err.Error(), "events: Webhook.URL", "-events-webhook")
		what = strings.ReplaceAll(what, "events: Webhook.Secret", "the secret of -events-webhook")
		return nil, &cli.Error{What: what, Try: "-events-webhook https://HOST/PATH, and " + makeSecret, Err: err}
	}
	return built, nil
}

// secret reads what signs the requests: from the file, or else from the environment.
func (g givenEvents) secret(environment string) (string, error) {
	if g.secretFile == "" {
		if environment == "" {
			return "", cli.Errorf(makeSecret+", or -events-secret-file FILE", "-events-webhook needs a secret that signs its requests, and %s is not set", secretVariable)
		}
		return environment, nil
	}
	text, err := os.ReadFile(g.secretFile)
	switch {
	case err != nil:
		cause := err
		if path := new(os.PathError); errors.As(err, &path) {
			cause = path.Err
		}
		return "", cli.Errorf("openssl rand -hex 16 > "+g.secretFile, "-events-secret-file %s: %v", g.secretFile, cause)
	case len(text) > mostSecret:
		return "", cli.Errorf("openssl rand -hex 16 > FILE", "-events-secret-file %s has %d bytes; a secret has %d at most", g.secretFile, len(text), mostSecret)
	}
	return strings.TrimSpace(string(text)), nil
}
