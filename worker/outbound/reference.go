package outbound

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// reference matches the name of a secret that a task refers to instead of containing it:
// ${env:STRIPE_KEY} or ${file:/run/secrets/stripe}.
var reference = regexp.MustCompile(`\$\{((?:env|file):[^{}]*)\}`)

// maxReference bounds a secret in a file, in bytes.
const maxReference = 64 << 10

// references are the secrets that tasks may refer to, and the hosts to which each may be sent. A task
// chooses its URL, so a secret without a host would go wherever the author of a task likes.
type references map[string]hosts

// parseReferences parses entries such as "env:STRIPE_KEY@api.stripe.com". Its error lists every bad one.
func parseReferences(entries []string) (references, error) {
	all := references{}
	var faults []error
	for _, entry := range entries {
		name, at, err := parseReference(entry)
		if err != nil {
			faults = append(faults, fmt.Errorf("outbound: secret %q: %w", entry, err))
			continue
		}
		if all[name] == nil {
			all[name] = hosts{}
		}
		all[name][at] = true
	}
	return all, errors.Join(faults...)
}

func parseReference(entry string) (name string, at hostPort, err error) {
	i := strings.LastIndexByte(entry, '@')
	if i < 0 {
		return "", at, errors.New("names no host; write env:NAME@HOST or file:PATH@HOST, with the host that it may be sent to")
	}
	name = entry[:i]
	if kind, rest, _ := strings.Cut(name, ":"); kind != "env" && kind != "file" || rest == "" || strings.ContainsAny(rest, "{}") {
		return "", at, errors.New("names no secret; write env:NAME@HOST or file:PATH@HOST")
	}
	at, err = parseHost(entry[i+1:])
	return name, at, err
}

// resolve replaces references by secrets in the headers, the path and the query of a payload. It
// returns their values, which must not appear in an error. A reference that the worker does not allow
// is a *PayloadError; a secret that cannot be read now is an error that a retry may cure.
func (r references) resolve(p *payload) (values []string, err error) {
	to, _ := url.Parse(authority.FindString(p.URL)) // parseURL reports what is wrong with it
	fill := func(field, text string, escape func(string) string) string {
		return reference.ReplaceAllStringFunc(text, func(ref string) string {
			if err != nil {
				return ref
			}
			name := ref[len("${") : len(ref)-len("}")]
			if fault := r.fault(name, to); fault != "" {
				err = &PayloadError{field, fault}
				return ref
			}
			value := ""
			value, err = readReference(name)
			values = append(values, value)
			return escape(value)
		})
	}
	base := len(authority.FindString(p.URL))
	path, query, hasQuery := strings.Cut(p.URL[base:], "?")
	resolved := p.URL[:base] + fill("url", path, url.PathEscape)
	if hasQuery {
		resolved += "?" + fill("url", query, url.QueryEscape)
	}
	headers := make(map[string]string, len(p.Headers))
	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		headers[name] = fill(headerField(name), p.Headers[name], strings.Clone)
	}
	if err != nil {
		return nil, err
	}
	p.URL, p.Headers = resolved, headers
	return values, nil
}

// authority matches the beginning of a URL up to its path.
var authority = regexp.MustCompile(`^[^:/?#]*://[^/?#]*`)

// fault returns why a secret is not sent to a URL, "" if it may be. An entry without a port allows encrypted requests only.
func (r references) fault(name string, to *url.URL) string {
	if to != nil {
		port, _ := strconv.Atoi(to.Port())
		if port == 0 {
			port = map[string]int{"http": 80, "https": 443}[to.Scheme]
		}
		host, _ := httpsyntax.Host(to.Hostname())
		host = normalHost(host)
		switch named, everyPort := r[name][hostPort{host, port}], r[name][hostPort{host, 0}]; {
		case named || everyPort && to.Scheme == "https":
			return ""
		case everyPort:
			return "a secret is sent by https alone where -secret names no port"
		}
	}
	return fmt.Sprintf("names the secret %s, which this worker does not give to that host; start it with -secret %s@HOST", clean(name, 100), clean(name, 100))
}

// readReference reads a secret anew each time, so that a file can be replaced. The end of a file's last line is not part of it.
func readReference(name string) (string, error) {
	kind, where, _ := strings.Cut(name, ":")
	if kind == "env" {
		if value := os.Getenv(where); value != "" {
			return value, nil
		}
		return "", fmt.Errorf("outbound: the worker's environment has no %s", where)
	}
	text, err := os.ReadFile(where)
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case err != nil:
		return "", fmt.Errorf("outbound: the secret %s cannot be read: %w", name, err)
	case value == "":
		return "", fmt.Errorf("outbound: the secret %s is empty", name)
	case len(value) > maxReference:
		return "", fmt.Errorf("outbound: the secret %s is larger than %d KiB", name, maxReference>>10)
	}
	return value, nil
}
