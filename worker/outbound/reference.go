package outbound

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/queue/httpsyntax"
)

// reference matches the name of a secret that a task refers to instead of containing it:
// ${env:STRIPE_KEY} or ${file:/run/secrets/stripe}.
var reference = regexp.MustCompile(`\$\{((?:env|file):[^{}]*)\}`)

// headerReference also matches what a header's value has for the secret of the member that the task was granted.
var headerReference = regexp.MustCompile(reference.String() + "|" + httpsyntax.Template.String())

// memberMark ends the name of an entry that has a secret for each member: file:/run/secrets/github/{member} or env:GITHUB_{member}.
const memberMark = "{member}"

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
		if other := all.rival(name, at); other != "" {
			faults = append(faults, fmt.Errorf("outbound: secret %q: members have their secrets for that host in %s; keep one of the two", entry, other))
			continue
		}
		all[name][at] = true
	}
	return all, errors.Join(faults...)
}

// rival returns another entry that has secrets of members for a host, if name has them too. Port 0 is any.
func (r references) rival(name string, at hostPort) string {
	for other, hosts := range r {
		for has := range hosts {
			if other != name && strings.HasSuffix(name, memberMark) && strings.HasSuffix(other, memberMark) &&
				has.host == at.host && (has.port == at.port || has.port == 0 || at.port == 0) {
				return other
			}
		}
	}
	return ""
}

func parseReference(entry string) (name string, at hostPort, err error) {
	i := strings.LastIndexByte(entry, '@')
	if i < 0 {
		return "", at, errors.New("names no host; write env:NAME@HOST or file:PATH@HOST, with the host that it may be sent to")
	}
	name = entry[:i]
	kind, rest, _ := strings.Cut(name, ":")
	rest, ofMembers := strings.CutSuffix(rest, memberMark)
	switch {
	case kind != "env" && kind != "file", rest == "" && !ofMembers, strings.ContainsAny(rest, "{}"):
		return "", at, errors.New("names no secret; write env:NAME@HOST or file:PATH@HOST")
	case ofMembers && kind == "file" && !strings.HasSuffix(rest, "/"):
		return "", at, errors.New("{member} is the whole name of a file; write file:DIR/{member}@HOST")
	case ofMembers && rest == "": // else a member could name any variable, that of Redis's password too
		return "", at, errors.New("{member} is the end of a variable's name; write env:PREFIX_{member}@HOST")
	}
	at, err = parseHost(entry[i+1:])
	return name, at, err
}

// resolve replaces references by secrets in the headers, the path and the query of a payload of a task that was granted member. It
// returns their values, which must not appear in an error. A reference that the worker does not allow
// is a *PayloadError; a secret that cannot be read now is an error that a retry may cure.
func (r references) resolve(p *payload, member string) (values []string, err error) {
	to, _ := url.Parse(authority.FindString(p.URL)) // parseURL reports what is wrong with it
	fill := func(field, text string, refs *regexp.Regexp, escape func(string) string) string {
		return refs.ReplaceAllStringFunc(text, func(ref string) string {
			if err != nil {
				return ref
			}
			name, fault := r.find(ref, to, member)
			if fault != "" {
				err = &PayloadError{field, fault}
				return ref
			}
			value := ""
			value, err = readReference(name, member)
			values = append(values, value)
			return escape(value)
		})
	}
	base := len(authority.FindString(p.URL))
	path, query, hasQuery := strings.Cut(p.URL[base:], "?")
	resolved := p.URL[:base] + fill("url", path, reference, url.PathEscape)
	if hasQuery {
		resolved += "?" + fill("url", query, reference, url.QueryEscape)
	}
	headers := make(map[string]string, len(p.Headers))
	for _, name := range slices.Sorted(maps.Keys(p.Headers)) {
		headers[name] = fill(headerField(name), p.Headers[name], headerReference, strings.Clone)
	}
	if err != nil {
		return nil, err
	}
	p.URL, p.Headers = resolved, headers
	return values, nil
}

// authority matches the beginning of a URL up to its path.
var authority = regexp.MustCompile(`^[^:/?#]*://[^/?#]*`)

// find returns the entry that a reference in a task names, or why its secret is not sent to a URL.
func (r references) find(ref string, to *url.URL, member string) (name, fault string) {
	if name, is := strings.CutPrefix(ref, "${"); is {
		name = strings.TrimSuffix(name, "}")
		return name, r.fault(name, to)
	}
	if fault := httpsyntax.TemplateFault(ref); fault != "" {
		return "", fault
	}
	if member == "" {
		return "", "names the secret of a pool's member, and the task was granted none; give it a scope below a pool of limits.yaml"
	}
	fault = r.fault("file:DIR/"+memberMark, to)
	for name := range r {
		if !strings.HasSuffix(name, memberMark) {
			continue
		}
		switch why := r.fault(name, to); why {
		case "":
			return name, ""
		case byHTTPS:
			fault = why
		}
	}
	return "", fault
}

const byHTTPS = "a secret is sent by https alone where -secret names no port"

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
			return byHTTPS
		}
	}
	return fmt.Sprintf("names the secret %s, which this worker does not give to that host; start it with -secret %s@HOST", clean(name, 100), clean(name, 100))
}

// readReference reads a secret anew each time, so that a file can be replaced. The end of a file's last line is not part of it.
func readReference(name, member string) (string, error) {
	kind, where, _ := strings.Cut(name, ":")
	at, ofMember := strings.CutSuffix(where, memberMark)
	hint, read := "", os.ReadFile
	if ofMember {
		name, where = strings.TrimSuffix(name, memberMark)+member, at+member
		hint = "; put the secret of the pool's member " + strconv.Quote(member) + " there, or pause the member"
		read = func(string) ([]byte, error) { return readMember(at, member) }
	}
	if kind == "env" {
		if ofMember && !variable.MatchString(member) {
			return "", fmt.Errorf("outbound: no variable's name can end in %q; give the worker the secrets of members as -secret file:DIR/{member}@HOST", member)
		}
		if value := os.Getenv(where); value != "" {
			return value, nil
		}
		return "", fmt.Errorf("outbound: the worker's environment has no %s%s", where, hint)
	}
	text, err := read(where)
	value := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case err != nil:
		return "", fmt.Errorf("outbound: the secret %s cannot be read: %w%s", name, err, hint)
	case value == "":
		return "", fmt.Errorf("outbound: the secret %s is empty%s", name, hint)
	case len(value) > maxReference:
		return "", fmt.Errorf("outbound: the secret %s is larger than %d KiB", name, maxReference>>10)
	}
	return value, nil
}

// variable matches what the name of an environment variable may end in. Any other alias would have to be changed, and two could become the same.
var variable = regexp.MustCompile(`^[A-Za-z0-9_]+$`)

// readMember reads the file of a member, and none outside of dir or of another member, whatever the alias is.
func readMember(dir, member string) ([]byte, error) {
	if !fs.ValidPath(member) { // a/../b is b in dir
		return nil, errors.New("the alias is no name of a file")
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	return root.ReadFile(filepath.FromSlash(member))
}
