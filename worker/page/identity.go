package page

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/headway-go/headway/worker/control"
)

// Actor is a person or program that uses the page: a name for the history, groups that are compared
// with a scope's owner, a role, and the scopes that it may see.
type Actor = control.Actor

// Role is what an Actor may do.
type Role = control.Role

// The roles. A viewer sees, an owner also acts in its own scopes, and an admin does everything.
const (
	RoleNone   = control.RoleNone
	RoleViewer = control.RoleViewer
	RoleOwner  = control.RoleOwner
	RoleAdmin  = control.RoleAdmin
)

// sameRights reports whether two actors are one person with the same rights.
func sameRights(a, b Actor) bool {
	same := func(x, y []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(x)), slices.Sorted(slices.Values(y)))
	}
	return a.Name == b.Name && a.Role == b.Role && same(a.Groups, b.Groups) && same(a.Scopes, b.Scopes)
}

// Proxy is a reverse proxy that authenticates requests and names the user in X-Forwarded-User, and groups
// separated by commas in X-Forwarded-Groups, such as oauth2-proxy. These headers count only in requests from
// one of its Networks; all other requests are refused.
type Proxy struct {
	// Networks are the addresses that the proxy's requests come from. Required.
	Networks []netip.Prefix
	// Hosts are the names under which browsers ask for the page, such as limits.example.com; other requests
	// are refused, so that a foreign name that points here gets no answer. Defaults to
	// localhost and every address, since those are no such names: set it if the proxy passes on the Host.
	Hosts []string
	// Admins and Viewers are the groups with these roles, and persons as user:NAME. All others are
	// RoleOwner: viewers that may act in the scopes that they own.
	Admins, Viewers []string
}

func (p *Proxy) check() error {
	if len(p.Networks) == 0 {
		return errors.New("page: Proxy.Networks is empty: name the networks that the proxy's requests come from")
	}
	for _, host := range p.Hosts {
		if _, err := netip.ParseAddr(host); err != nil && (host == "" || strings.ContainsAny(host, "/:*")) {
			return fmt.Errorf("page: Proxy.Hosts has %q, which is no name of a host such as limits.example.com, without a port", host)
		}
	}
	return nil
}

func (p *Proxy) sends(r *http.Request) bool {
	from, ok := remote(r)
	return ok && slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(from) })
}

// named reports whether a request asks for the page under one of its names.
func (p *Proxy) named(r *http.Request) bool {
	host := hostOf(r)
	if len(p.Hosts) > 0 {
		return slices.ContainsFunc(p.Hosts, func(name string) bool { return strings.EqualFold(name, host) })
	}
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost"
}

// identify returns the actor that the proxy names. It refuses a header with two lines: one may be the client's.
func (p *Proxy) identify(r *http.Request) (Actor, bool) {
	names, groups := r.Header.Values("X-Forwarded-User"), r.Header.Values("X-Forwarded-Groups")
	if !p.sends(r) || !p.named(r) || len(names) != 1 || len(groups) > 1 {
		return Actor{}, false
	}
	actor := Actor{Name: strings.TrimSpace(names[0]), Role: RoleOwner}
	for group := range strings.SplitSeq(strings.Join(groups, ""), ",") {
		if group = strings.TrimSpace(group); group != "" {
			actor.Groups = append(actor.Groups, group)
		}
	}
	switch {
	case slices.ContainsFunc(p.Admins, actor.Is):
		actor.Role = RoleAdmin
	case slices.ContainsFunc(p.Viewers, actor.Is):
		actor.Role = RoleViewer
	}
	return actor, true
}

func remote(r *http.Request) (netip.Addr, bool) {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	return at.Addr().Unmap(), true
}

func hostOf(r *http.Request) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// local reports whether a request was made on this machine, to a name of this machine: a foreign name may resolve to it.
func local(r *http.Request) bool {
	from, ok := remote(r)
	if !ok || !from.IsLoopback() {
		return false
	}
	host := hostOf(r)
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.IsLoopback()
}

// forwarded reports whether a proxy has passed a request on: its sender may be on any machine.
func forwarded(r *http.Request) bool {
	for name := range r.Header {
		if strings.HasPrefix(name, "X-Forwarded-") || name == "Forwarded" || name == "X-Real-Ip" || name == "Via" {
			return true
		}
	}
	return false
}
