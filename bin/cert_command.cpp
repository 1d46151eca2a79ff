// `dflash cert`: a private CA, and certificates of nodes signed by it.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bin/commands.hpp"
#include "config/error.hpp"
#include "data/files.hpp"
#include "messages/certificates.hpp"

namespace dflash {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t max_pem_bytes = 1 << 20;
constexpr int ca_days = 3650;

struct cert_options {
  std::string ca;
  std::string name;
  std::vector<std::string> hosts;
  std::string out;
  int days = 825;
  bool force = false;
};

void make_folder(const fs::path& folder, const char* option) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem || !fs::is_directory(folder))
    throw error("cannot make the folder: " + problem.message(),
                std::string(option) + " " + folder.string());
}

void check_free(const fs::path& file, const char* what, bool force) {
  if (force || !fs::exists(file)) return;
  throw error(std::string("there is ") + what + " already",
              file.string(),
              "--force replaces it; connections that use the old one are refused from then on");
}

int make_ca_folder(const cert_options& o) {
  const fs::path folder = o.ca;
  for (const char* name : {"ca.pem", "ca.key"}) check_free(folder / name, "a CA", o.force);
  make_folder(folder, "--ca");
  const certificate_pair ca = make_ca("dflash-ca", valid_for(std::chrono::days(ca_days)));
  write_secret_file(folder / "ca.key", ca.key);
  write_file_atomically(folder / "ca.pem", ca.certificate);
  std::printf(
      "%s\n%s\n\nKeep ca.key where no node can read it: whoever has it can lend and use lanes.\n"
      "A certificate for each node, and one for the host that trains:\n"
      "  dflash cert --ca %s --name nodeB --host 10.0.0.2 --out nodeB\n",
      (folder / "ca.pem").c_str(),
      (folder / "ca.key").c_str(),
      folder.c_str());
  return 0;
}

int make_node_folder(const cert_options& o) {
  const fs::path from = o.ca, to = o.out;
  if (!fs::exists(from / "ca.key") || !fs::exists(from / "ca.pem"))
    throw error("there is no CA in this folder",
                "--ca " + from.string(),
                "make one first: dflash cert --ca " + from.string());
  const certificate_pair ca{read_file(from / "ca.pem", max_pem_bytes),
                            read_file(from / "ca.key", max_pem_bytes)};
  const wire_security files = node_folder(to);
  check_free(files.certificate, "a certificate", o.force);
  check_free(files.key, "a key", o.force);
  certificate_pair node;
  try {
    node = make_node_certificate(ca, o.name, o.hosts, valid_for(std::chrono::days(o.days)));
  } catch (const error& problem) {
    if (!problem.where.empty()) throw;
    throw error(problem.what_, "--ca " + from.string(), problem.hint);
  }
  make_folder(to, "--out");
  write_secret_file(files.key, node.key);
  write_file_atomically(files.certificate, node.certificate);
  if (!fs::exists(files.ca) || !fs::equivalent(files.ca, from / "ca.pem"))
    write_file_atomically(files.ca, ca.certificate);
  std::printf("%s\n%s\n%s\n\nCopy the folder to the node; nobody else may read node.key.\n",
              files.ca.c_str(),
              files.certificate.c_str(),
              files.key.c_str());
  return 0;
}

int run_cert(const cert_options& o) {
  const bool node = !o.name.empty() || !o.hosts.empty() || !o.out.empty();
  if (!node) return make_ca_folder(o);
  if (o.name.empty() || o.hosts.empty() || o.out.empty())
    throw error("a node's certificate needs --name, --host and --out",
                {},
                "dflash cert --ca DIR --name nodeB --host 10.0.0.2 --out nodeB");
  return make_node_folder(o);
}

}  // namespace

void add_cert_command(CLI::App& app, std::function<int()>& action) {
  auto o = std::make_shared<cert_options>();
  CLI::App* command = app.add_subcommand(
      "cert", "Certificates for runs over several hosts: a private CA, then one for each node");
  command->add_option("--ca", o->ca, "Folder of the CA: ca.pem, ca.key; alone: makes it")
      ->required();
  command->add_option("--name", o->name, "Name of the node");
  command->add_option("--host",
                      o->hosts,
                      "Name or address under which others connect to the node; may be repeated");
  command->add_option("--out", o->out, "Folder for ca.pem, node.pem, node.key");
  command->add_option("--days", o->days, "The node's certificate is good for so many days")
      ->capture_default_str()
      ->check(CLI::Range(1, ca_days));
  command->add_flag("--force", o->force, "Replace what is there");
  command->footer(
      "dflash cert --ca ca                                            once, where it stays\n"
      "dflash cert --ca ca --name hub --host 10.0.0.1 --out hub       the host that trains\n"
      "dflash cert --ca ca --name nodeB --host 10.0.0.2 --out nodeB   each node\n\n"
      "Both ends of a connection show their certificate, and neither talks to one that the CA has\n"
      "not signed. A node's certificate holds for the hosts that it names. To shut a node out,\n"
      "make a new CA and new certificates for the others.");
  command->callback([o, &action] { action = [o] { return run_cert(*o); }; });
}

}  // namespace dflash
