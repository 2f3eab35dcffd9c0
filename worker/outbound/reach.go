package outbound

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// reach is what tasks may reach by configuration.
type reach struct {
	allow hosts          // whatever their address, unless it is denied
	only  hosts          // empty: any
	deny  []netip.Prefix // IPv4 or IPv6, never one embedded in the other
	ports map[int]bool   // empty: any
}

func parseReach(cfg Config) (reach, error) {
	allow, allowErr := parseHosts("allow host", cfg.AllowHosts)
	only, onlyErr := parseHosts("only host", cfg.OnlyHosts)
	r := reach{allow: allow, only: only, ports: make(map[int]bool, len(cfg.Ports))}
	faults := []error{allowErr, onlyErr}
	for _, text := range cfg.DenyCIDRs {
		prefix, err := parseCIDR(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("outbound: deny CIDR %q: %w", text, err))
			continue
		}
		r.deny = append(r.deny, prefix)
	}
	for _, port := range cfg.Ports {
		if port < 1 || port > 65535 {
			faults = append(faults, fmt.Errorf("outbound: port %d is not between 1 and 65535", port))
		}
		r.ports[port] = true
	}
	return r, errors.Join(faults...)
}

// parseCIDR is strict: an address without a length, or with bits set beyond it, is ambiguous.
func parseCIDR(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		return netip.Prefix{}, fmt.Errorf("an address without a length; write %s/%d", addr, addr.BitLen())
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, errors.New("not a range; write an address and how many of its bits count, such as 10.0.0.0/8 or 2001:db8::/32")
	case p.Masked() != p:
		return netip.Prefix{}, fmt.Errorf("has bits beyond its length; write %s", p.Masked())
	case p.Addr().Is4In6():
		return netip.Prefix{}, errors.New("an IPv4 range in IPv6; write it in IPv4, which counts in IPv6 too")
	}
	return p, nil
}

// denies returns the denied range that contains addr, or an IPv4 address embedded in it.
func (r reach) denies(addr netip.Addr) (netip.Prefix, bool) {
	for _, a := range append(embedded(addr), addr) {
		if i := slices.IndexFunc(r.deny, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 {
			return r.deny[i], true
		}
	}
	return netip.Prefix{}, false
}

// interfaceAddresses returns the addresses of the machine's interfaces: services that trust the machine
// itself listen on them, also on public ones.
func interfaceAddresses() ([]netip.Addr, error) {
	networks, err := net.InterfaceAddrs()
	addrs := make([]netip.Addr, 0, len(networks))
	for _, network := range networks {
		if ip, ok := network.(*net.IPNet); ok {
			if addr, ok := netip.AddrFromSlice(ip.IP); ok {
				addrs = append(addrs, addr.Unmap())
			}
		}
	}
	return addrs, err
}
