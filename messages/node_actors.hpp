// Interfaces between hosts. Only texts and figures travel here, by CAF; tensors have connections of
// their own (messages/wire_client.hpp).
#pragma once

#include <caf/all.hpp>

#include <string>

#include "messages/actors.hpp"

CAF_BEGIN_TYPE_ID_BLOCK(dflash_nodes, caf::id_block::dflash::end)
CAF_ADD_ATOM(dflash_nodes, dflash, hello_atom, "hello")
CAF_ADD_ATOM(dflash_nodes, dflash, lend_atom, "lend")
CAF_ADD_ATOM(dflash_nodes, dflash, offer_atom, "offer")
CAF_ADD_ATOM(dflash_nodes, dflash, serve_atom, "serve")
CAF_ADD_ATOM(dflash_nodes, dflash, tick_atom, "tick")
CAF_END_TYPE_ID_BLOCK(dflash_nodes)

namespace dflash {

// clang-format off

// Lends the lanes of its process: spawns them when asked, ends them when their borrower is gone.
// Published; is its process's inspector as well. Scheduled.
using node_actor = inspector_actor::extend<
    // greeting of a run: answered with the node's own (messages/node_greeting.hpp)
    caf::replies_to<hello_atom, std::string>::with<std::string>,
    // a run asks for a lane: where it is, or why not. The lane lives as long as the actor that asks
    caf::replies_to<lend_atom, std::string>::with<std::string>,
    // to itself: join a run, if there is one
    caf::reacts_to<tick_atom>>;

// A lane that is lent: holds its data port. Detached.
using lent_lane_actor = caf::typed_actor<
    // begins; answers with the port
    caf::replies_to<serve_atom>::with<uint16_t>,
    // to itself: did anybody come?
    caf::reacts_to<tick_atom>>;

// Of a run: takes nodes that join by themselves. Scheduled.
using node_door_actor = caf::typed_actor<
    // a node's greeting, from its own actor: answered with the run's
    caf::replies_to<offer_atom, std::string>::with<std::string>>;

// A run's inspector, which also passes nodes that join on to where they are expected.
using run_inspector_actor = inspector_actor::extend<
    caf::replies_to<offer_atom, std::string>::with<std::string>>;

// clang-format on

}  // namespace dflash
